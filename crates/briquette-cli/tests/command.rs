//! The command as its users run it: arguments in, streams, files and exit codes out.

mod common;

use std::{
    fs,
    time::{Duration, Instant},
};

use common::{
    assert_says, briquette, command, file, folder, json, outputs, read, read_json, stdout, text,
};
use serde_json::Value;

/// Longest time to refuse a number.
const PATIENCE: Duration = Duration::from_secs(20);

/// Stderr of a run that must fail with `code`, and print nothing on stdout.
fn refused(args: &[&str], code: i32) -> String {
    let output = briquette(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
    assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn policies_are_listed_for_people_and_programs() {
    let (_dir, [path]) = folder(["methods.json"]);
    let table = stdout(["policies", "--json", text(&path)]);
    let names = ["full", "local-window", "streaming-llm", "h2o", "tova", "snapkv"];
    assert_says(&table, &[&names[..], &["Li et al., 2024"]].concat());
    let listed = read_json(&path);
    let mut methods = listed["methods"].as_array().unwrap().iter();
    assert!(methods.any(|method| method["name"] == "snapkv"), "{listed}");
    assert_eq!(json(["policies"]), listed);
}

#[test]
fn an_environment_of_millions_of_threads_is_refused() {
    let mut command = command(["generate", "--prompt", "a", "--max-new-tokens", "1"]);
    let output = command.env("RAYON_NUM_THREADS", "99999999").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_says(&error, &["RAYON_NUM_THREADS asks for 99999999 threads, at most 4096"]);
}

#[test]
fn a_printed_policy_is_a_policy_file() {
    let dir = tempfile::tempdir().unwrap();
    let printed = stdout(["policies", "snapkv"]);
    let file = file(dir.path(), "mine.toml", &printed);
    assert_eq!(stdout(["policies", text(&file)]), printed);
    assert_says(&stdout(["policies", "snapkv:kernel=15"]), &["kernel = 15"]);

    fs::write(&file, printed + "\nkernal = 7\n").unwrap();
    let error = refused(&["policies", text(&file)], 1);
    assert!(error.starts_with("error: ") && error.contains("kernal"), "{error}");
}

#[test]
fn generate_streams_text_and_reports_what_it_took() {
    let (_dir, [path]) = folder(["report.json"]);
    let args = ["generate", "--prompt", "It was a dark and stormy", "--max-new-tokens", "12"];
    let (shown, speed) = outputs([&args[..], &["--json", text(&path)]].concat());
    let report = read_json(&path);
    assert_eq!(shown, format!("{}\n", report["text"].as_str().unwrap()));
    assert!(shown.trim().len() > 10, "{shown}");
    assert_says(&speed, &["tokens/s", "of a full cache"]);
    assert_eq!(report["decode"]["tokens"], 11);
    // The first new token comes out of the prefill, and the last is never fed.
    let seen = report["prefill"]["tokens"].as_u64().unwrap() + 11;
    assert_eq!(report["cache"]["tokens_seen"], seen);
    assert_eq!(json(args)["text"], report["text"]);
}

#[test]
fn generate_holds_its_budget() {
    let dir = tempfile::tempdir().unwrap();
    let haystack = include_str!("../../briquette-eval/assets/haystack.txt").lines().take(24);
    let file = file(dir.path(), "text.txt", haystack.collect::<Vec<_>>().join(" "));
    let args = ["generate", "--file", text(&file), "--max-new-tokens", "4"];
    let policy = ["--policy", "tova", "--budget", "48", "--chunk", "100"];
    let cache = &json([&args[..], &policy].concat())["cache"];
    assert!(cache["tokens_seen"].as_u64().unwrap() > 400, "{cache}");
    let kept = cache["tokens_kept"].as_array().unwrap();
    assert!(kept.len() == 8 && kept.iter().all(|kept| *kept == 48), "{cache}");
    assert!(cache["held_of_full"].as_f64().unwrap() < 0.125, "{cache}");
}

#[test]
fn generate_drafts_what_the_text_repeats() {
    let (dir, [path]) = folder(["report.json"]);
    let prose = file(dir.path(), "text.txt", "A fox lives in the wood. ".repeat(30));
    let args = ["generate", "--file", text(&prose), "--max-new-tokens", "24"];
    let plain = json(args);
    let (shown, said) = outputs([&args[..], &["--lookup", "5", "--json", text(&path)]].concat());
    let report = read_json(&path);
    assert_eq!(report["text"], plain["text"]);
    assert_eq!(shown, format!("{}\n", report["text"].as_str().unwrap()));
    assert_eq!(report["cache"]["tokens_seen"], plain["cache"]["tokens_seen"]);
    let number = |value: &Value| value.as_u64().unwrap();
    let [drafted, accepted] = ["drafted", "accepted"].map(|key| number(&report["lookup"][key]));
    let (calls, tokens) = (number(&report["steps"]), number(&report["decode"]["tokens"]));
    assert!(accepted > 0 && accepted <= drafted && calls + accepted == tokens, "{report}");
    let line = format!(
        "lookup   {calls} calls for {tokens} tokens: {accepted} of {drafted} drafted were right\n"
    );
    assert_says(&said, &[&line]);
    assert!(plain["lookup"].is_null(), "{plain}");
}

/// A text below the residual stays in full precision, which is said.
#[test]
fn generate_says_what_is_quantized() {
    let (_dir, [path]) = folder(["report.json"]);
    let args = ["generate", "--prompt", "It was a dark", "--max-new-tokens", "4"];
    let policy = ["--policy", "kivi:bits=4", "--json", text(&path)];
    let (_, said) = outputs([&args[..], &policy].concat());
    assert_says(&said, &["packed   0 % of the tokens: quantized to 4 bits, last 128 full"]);
    assert_eq!(read_json(&path)["cache"]["tokens_packed"], Value::from(vec![0; 8]));
    let (_, said) = outputs(args);
    assert!(!said.contains("packed"), "{said}");
}

#[test]
fn a_policy_file_is_held_to_the_budget_it_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let prose = file(dir.path(), "text.txt", "A fox lives in the wood. ".repeat(60));
    let printed = stdout(["policies", "tova"]);
    let none = printed.replace("[budget]\ntokens = 256\n\n", "");
    assert_ne!(printed, none);
    let policy = file(dir.path(), "mine.toml", &none);
    // What is printed of a file is what it says.
    assert_eq!(stdout(["policies", text(&policy)]), none);
    let args = ["generate", "--file", text(&prose), "--max-new-tokens", "2"];
    let args = [&args[..], &["--policy", text(&policy)]].concat();
    let report = json([&args[..], &["--budget", "25%"]].concat());
    let seen = report["cache"]["tokens_seen"].as_u64().unwrap();
    assert_eq!(report["budget"], "25%");
    assert_eq!(report["cache"]["tokens_kept"], Value::from(vec![seen / 4; 8]));
    let error = refused(&[&args[..], &["--json", "-"]].concat(), 1);
    assert!(
        error.contains("mine.toml") || error.contains("`tova` compresses, but has no"),
        "{error}"
    );
    assert_says(&error, &["--budget 256"]);
}

/// The rows of a result for a task asked at this time under a policy.
fn rows<'a>(report: &'a Value, policy: &str, ask: &str) -> Vec<&'a Value> {
    let rows = report["rows"].as_array().unwrap().iter();
    rows.filter(|row| row["policy"] == policy && row["ask"] == ask).collect()
}

#[test]
fn needle_measures_lengths_and_writes_a_page() {
    let (dir, [out, json]) = folder(["out", "copy.json"]);
    let file = file(dir.path(), "wide.toml", stdout(["policies", "snapkv:kernel=15"]));
    let grid = ["--lengths", "256,512", "--depths", "0,60", "--samples", "2", "--budgets", "64"];
    let policies = ["--policies", "streaming-llm", "--policy", text(&file)];
    let files = ["--out", text(&out), "--json", text(&json)];
    let table = stdout([&["needle"][..], &grid, &policies, &files].concat());
    let parts = ["full", "streaming-llm", "wide", "query-agnostic", "right tokens", "report.html"];
    assert_says(&table, &parts);

    let report = read_json(&json);
    assert_eq!(report["rows"].as_array().unwrap().len(), 3 * 2 * 2);
    let score = |policy: &str, ask: &str| {
        let rows = rows(&report, policy, ask);
        let long = rows.into_iter().find(|row| row["length"] == 512).unwrap();
        assert_eq!(long["mean"]["count"], 4);
        long["mean"]["mean"].as_f64().unwrap()
    };
    assert!(score("full", "before") >= 0.75, "{report}");
    assert_eq!(score("full", "before"), score("full", "after"));
    // Needles at 0 and 60 % are not among the last 60 tokens.
    assert_eq!(score("streaming-llm", "after"), 0.0);

    let lines = read(&out.join("results.jsonl")).lines().count();
    assert_eq!(lines, 1 + 3 * 2 * 8);
    // One budget is no line.
    assert!(!out.join("report/accuracy.svg").exists());
    for stem in ["lengths", "heatmap-needle-before", "heatmap-needle-after"] {
        let svg = read(&out.join(format!("report/{stem}.svg")));
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{stem}");
        let png = fs::read(out.join(format!("report/{stem}.png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG"), "{stem}");
    }
}

#[test]
fn batches_answer_as_single_prompts_do() {
    let answers = |batch: &str| -> Value {
        let small = "needle --lengths 256 --depths 0,100 --samples 3 --policies tova --budgets 96";
        let mut report = json(small.split(' ').chain(["--batch", batch]));
        for row in report["rows"].as_array_mut().unwrap() {
            row.as_object_mut().unwrap().remove("seconds");
        }
        report["rows"].take()
    };
    assert_eq!(answers("1"), answers("4"));
}

#[test]
fn failures_exit_with_1_and_say_why() {
    let (dir, [folder]) = folder(["empty"]);
    fs::create_dir(&folder).unwrap();
    let empty = text(&folder);
    let silent = file(dir.path(), "silent.jinja", "{% if false %}text{% endif %}");
    let silent_out = dir.path().join("out.prefix");
    let (silent, silent_out) = (text(&silent), text(&silent_out));
    let prompt = ["generate", "--prompt", "x"];
    let cases: [(&[&str], &[&str], &str); 24] = [
        (&prompt, &["--policy", "nosuch"], "policy `nosuch`: there is no such method; `briquette"),
        (&prompt, &["--policy", "SnapKV"], "policy `SnapKV`: did you mean `snapkv`? there is no"),
        (&prompt, &["--policy", "full", "--budget", "25%"], "takes no budget, and 25% is given"),
        (&prompt, &["--policy", "kvzip:tokens=0"], "write the whole, as score.tokens=2048"),
        (&prompt, &["--policy", "nosuch.toml"], "nosuch.toml"),
        (&prompt, &["--budget", "16"], "a budget of 16"),
        (&prompt, &["--device", "abacus"], "`abacus`"),
        (
            &prompt,
            &["--model", "Qwen/Qwen3-0.6B"],
            "file Qwen/Qwen3-0.6B, and nothing is downloaded",
        ),
        (
            &["needle"],
            &["--model", "Qwen/Qwen3-0.6B"],
            "Qwen/Qwen3-0.6B, and nothing is downloaded",
        ),
        (&prompt, &["--model", empty], "neither a GGUF file nor a folder with config.json"),
        (&prompt, &["--model", silent], "neither a GGUF file nor a folder with config.json"),
        (&["needle"], &["--model", silent], "neither a GGUF file nor a folder with config.json"),
        (&["generate", "--prompt", ""], &[], "error: --prompt is empty"),
        (&["generate", "--file", "-"], &[], "error: stdin is empty"),
        (&["compress", "--prompt", "", "--out", silent_out], &[], "error: --prompt is empty"),
        (&prompt, &["--chat", "--template", silent], "the chat template wrote no text for this"),
        (&prompt, &["--temperature", "-1"], "temperature"),
        (
            &prompt,
            &["--lookup", "5", "--temperature", "0.7"],
            "lookup is 5 at a temperature of 0.7, but must be 0 where tokens are drawn",
        ),
        (&["generate", "--file", "no.txt"], &[], "no.txt"),
        (&["needle"], &["--haystack", empty], "hold no text"),
        (&["needle"], &["--lengths", "8192"], "4096"),
        (&["mask-heads"], &["--length", "8192"], "4096"),
        (&["mask-heads"], &["--counts", "0,65"], "65 heads are to be masked, the model has 64"),
        (&["mask-heads"], &["--counts", "1,2,1"], "counts: a value is given twice"),
    ];
    for (command, args, reason) in cases {
        let error = refused(&[command, args].concat(), 1);
        assert!(error.starts_with("error: ") && error.contains(reason), "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn a_command_line_that_makes_no_sense_exits_with_2() {
    for args in [
        &[][..],
        &["nosuch"],
        &["generate"],
        &["generate", "--prompt", "x", "--file", "y"],
        &["generate", "--prompt", "x", "--budget", "lots"],
        &["generate", "--prompt", "x", "--dtype", "f64"],
        &["needle", "--depths", "0,120"],
        &["needle", "--batch", "0"],
        &["mask-heads", "--samples", "0"],
    ] {
        refused(args, 2);
    }
    assert_says(&stdout(["--help"]), &["Exit codes:"]);
}

#[test]
fn more_samples_than_can_be_made_are_refused() {
    for args in [
        "needle --samples 1000000000000",
        "compare --out out --samples 18446744073709551615",
        "calibrate --out p.json --prompts 1000000000000",
        "calibrate --out p.json --prompts 18446744073709551615",
        "mask-heads --samples 1000000000000",
        "needle --lengths 1000000000000",
        "mask-heads --length 18446744073709551615",
        "perplexity --prompt 18446744073709551615",
        "perplexity --windows 18446744073709551615",
        "fidelity --tokens 18446744073709551615",
        "generate --prompt It --chunk 18446744073709551615 --max-new-tokens 1",
        "generate --prompt It --lookup 18446744073709551615 --max-new-tokens 3",
        "generate --prompt It --budget 1e9GiB --max-new-tokens 1",
        "generate --prompt It --policy ems:gamma=1e18 --max-new-tokens 1",
        "generate --prompt It --policy d2o:sinks=9223372036854775807 --max-new-tokens 1",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let output = command(args.split(' ')).current_dir(dir.path()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        // What is large and works is fine.
        assert!(matches!(output.status.code(), Some(0..=2)), "{args}: {output:?}");
        assert!(!error.contains("panicked"), "{args}: {error}");
        assert!(start.elapsed() < PATIENCE, "{args}: {:?}", start.elapsed());
    }
}
