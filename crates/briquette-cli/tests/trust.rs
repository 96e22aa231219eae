//! Nothing lost, nothing silently wrong: other weights, closed pipes, foreign files, damaged lines,
//! interrupts.

mod common;

use std::{
    fs,
    io::{PipeWriter, Read, Write},
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use briquette::{Budget, Policy, Profile};
use briquette_eval::{
    Error,
    calibrate::{self, Calibration},
    journal::Accept,
    tasks::{haystack::Haystack, text::Text},
    tune::{self, Tuning, Unit},
};
use briquette_models::{Model, Tokenizer};
use burn::tensor::DType;
use common::{
    MODEL, assert_says, command, copy_model, done, file, folder, outputs, read, records, refused,
    run_file, run_file_of, spawn, stdout, text,
};
use serde_json::Value;

/// A copy of the embedded model, without its profile, under its name in the folder `dir`, with its
/// weights changed.
fn model(dir: &Path, change: impl FnOnce(&mut [u8])) -> PathBuf {
    let copy = dir.join("ember-7m");
    copy_model(&copy, &["config.json", "tokenizer.json"]);
    let mut weights = fs::read(Path::new(MODEL).join("model.safetensors")).unwrap();
    change(&mut weights);
    fs::write(copy.join("model.safetensors"), weights).unwrap();
    copy
}

/// The lowest bit of one weight, at a place that a sample of the file passes over.
fn one_bit(weights: &mut [u8]) {
    let middle = weights.len() / 2 / 2 * 2 + 100_000;
    weights[middle] ^= 1;
}

/// The last tensor, the scale of the last norm, all of this number in bf16: what comes out is that
/// number, or zero.
fn last_norm(weights: &mut [u8], bits: u16) {
    let start = weights.len() - 512;
    for number in weights[start..].chunks_exact_mut(2) {
        number.copy_from_slice(&bits.to_le_bytes());
    }
}

/// Small sizes of every command, and the files each must leave in `dir`.
fn commands(dir: &Path) -> Vec<(Vec<String>, Vec<PathBuf>)> {
    let at = |name: &str| dir.join(name);
    let rest = "[[policies]]\nname = \"tova\"\n[[tasks.perplexity]]\nprompt = 48\ntokens = 2\n";
    let run_file = run_file(dir, "small.toml", "budgets = [48]\n", rest);
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<String>>();
    let folder = |line: &str, name: &str, files: &[&str]| {
        let mut args = words(line);
        args.extend(["--out".into(), text(&at(name)).to_owned()]);
        args.extend(["--json".into(), text(&at(&format!("{name}.json"))).to_owned()]);
        let mut files: Vec<PathBuf> = files.iter().map(|file| at(name).join(file)).collect();
        files.push(at(&format!("{name}.json")));
        (args, files)
    };
    let needle = "needle --lengths 128 --depths 50 --samples 1 --policies tova --budgets 48";
    let text_sizes = "--tokens 2 --windows 2 --policies tova --budgets 48";
    let ran = ["results.jsonl", "plan.jsonl", "run.toml", "report.html", "report/report.csv"];
    let mut all = vec![
        (words("policies"), Vec::new()),
        (words("--help"), Vec::new()),
        (words("--version"), Vec::new()),
        (words("run --help"), Vec::new()),
        (words("generate --prompt It --max-new-tokens 3"), Vec::new()),
        folder(needle, "needle", &ran),
        folder(&format!("perplexity --prompt 96 {text_sizes}"), "nats", &ran),
        folder(&format!("fidelity --length 96 {text_sizes}"), "near", &ran),
        folder(
            &format!("compare --length 128 --depths 50 --samples 1 {text_sizes}"),
            "table",
            &ran,
        ),
        folder("calibrate --prompts 1 --tokens 128", "profile", &[]),
        folder(
            "tune --target-ratio 0.9 --length 96 --tokens 2 --windows 2 --policies tova",
            "p.toml",
            &[],
        ),
    ];
    for (args, files) in &mut all[9..] {
        files.push(PathBuf::from(&args[args.iter().position(|arg| arg == "--out").unwrap() + 1]));
    }
    let (mut args, files) = folder("run", "ran", &ran);
    args.insert(1, text(&run_file).to_owned());
    all.push((args, files));
    let dir = text(&at("ran")).to_owned();
    all.push((vec!["merge".into(), dir.clone()], Vec::new()));
    all.push((vec!["report".into(), dir], vec![at("ran/report/report.csv")]));
    all
}

/// A pipe that nobody reads.
fn closed() -> PipeWriter {
    std::io::pipe().unwrap().1
}

#[test]
fn a_closed_stdout_is_a_failure_that_leaves_every_file() {
    let dir = tempfile::tempdir().unwrap();
    for (args, files) in commands(dir.path()) {
        let output = command(&args).stdout(closed()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        assert!(error.contains("error: cannot write"), "{args:?}: {error}");
        for file in files {
            assert!(file.is_file(), "{args:?}: {} is missing: {error}", file.display());
        }
    }
}

#[test]
fn results_know_the_tokens_that_end_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path(), |_| ());
    let out = dir.path().join("out");
    let policy = "[[policies]]\nname = \"tova\"\n";
    let rest = format!("{policy}[[tasks.needle]]\nlengths = [128]\ndepths = [0]\nsamples = 1\n");
    let file = run_file_of(&model, dir.path(), "small.toml", "budgets = [48]\n", &rest);
    let sizes = "--lengths 128 --depths 50 --samples 1 --policies tova --budgets 48".split(' ');
    let needle =
        [&["needle", "--model", text(&model), "--out", text(&out)][..], &sizes.collect::<Vec<_>>()]
            .concat();
    let run_out = dir.path().join("ran");
    let run = ["run", text(&file), "--out", text(&run_out), "--no-report"];
    for args in [&needle[..], &run] {
        let _ = fs::remove_file(model.join("generation_config.json"));
        stdout(args);
        fs::write(model.join("generation_config.json"), "{\"eos_token_id\": 7}").unwrap();
        assert_says(&refused(args), &["stop", "7"]);
    }
}

#[test]
fn a_closed_stderr_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for (args, files) in commands(dir.path()) {
        if ["perplexity", "fidelity", "compare"].contains(&args[0].as_str()) {
            continue;
        }
        let (result, _) = done(command(&args).stderr(closed()));
        assert!(!result.is_empty(), "{args:?}");
        assert!(files.iter().all(|file| file.is_file()), "{args:?}: {files:?}");
    }
    let status = command(["policies", "nosuch"]).stderr(closed()).status().unwrap();
    assert_eq!(status.code(), Some(1));

    let args = ["generate", "--prompt", "It was", "--max-new-tokens", "2", "--json", "-"];
    let (found, _) = done(command(args).stderr(closed()));
    assert!(serde_json::from_str::<Value>(&found).unwrap().is_object(), "{found}");
}

#[test]
fn generation_ends_when_nobody_reads() {
    let args = ["generate", "--prompt", "It was", "--policy", "streaming-llm", "--budget", "32"];
    let mut child = command([&args[..], &["--max-new-tokens", "1000000"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 20];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut some).unwrap();
    drop(stdout);
    let end = Instant::now() + Duration::from_secs(60);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > end => {
                child.kill().unwrap();
                panic!("it goes on");
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    assert_eq!(status.code(), Some(1));
}

#[test]
fn journals_and_profiles_know_the_weights() {
    let dir = tempfile::tempdir().unwrap();
    let device = briquette::device::open("flex").unwrap();
    let model = Model::load(MODEL, &device, DType::F32).unwrap();
    let tokenizer = Tokenizer::load(MODEL).unwrap();
    let (haystack, prose) = (Haystack::built_in(), Text::built_in(&tokenizer).unwrap());
    let policy = Policy::tova(Budget::Tokens(48));
    let name = || "ember-7m".to_owned();
    let calibrate = |weights: &str, accept| {
        let calibration = Calibration {
            model: &model,
            tokenizer: &tokenizer,
            haystack: &haystack,
            texts: &[],
            plan: calibrate::Plan { prompts: 1, lengths: vec![128], seed: 0, patterns: None },
            name: name(),
            weights: weights.into(),
            accept,
            min_right: 0.0,
            threads: 1,
        };
        let made = calibration.run(&dir.path().join("calibrate"), |_| {})?;
        assert_eq!(made.profile.weights.as_deref(), Some(weights));
        Ok(())
    };
    let tune = |weights: &str, accept| {
        let tuning = Tuning {
            model: &model,
            material: tune::Material::Text(&prose),
            plan: tune::Plan {
                target: 0.9,
                unit: Unit::Tokens,
                prompt: 96,
                tokens: 2,
                windows: 2,
                seed: 0,
            },
            candidates: vec![tune::Candidate { label: "tova".into(), policy: Ok(policy.clone()) }],
            name: name(),
            weights: weights.into(),
            accept,
            threads: 1,
        };
        tuning.run(&dir.path().join("tune"), |_, _, _| {}).map(|_| ())
    };
    let accept = Accept { other_weights: true, ..Accept::default() };
    type Measure<'a> = &'a dyn Fn(&str, Accept) -> briquette_eval::Result<()>;
    let all: [(&str, Measure<'_>); 2] = [("calibrate", &calibrate), ("tune", &tune)];
    for (name, measure) in all {
        measure("aaaa", Accept::default()).unwrap();
        let before = read(&dir.path().join(name));
        measure("aaaa", Accept::default()).unwrap();
        let error = measure("bbbb", Accept::default()).unwrap_err();
        assert!(matches!(error, Error::OtherWeights { .. }), "{name}: {error}");
        let error = error.to_string();
        assert!(error.contains("aaaa") && error.contains("bbbb"), "{name}: {error}");
        assert_eq!(read(&dir.path().join(name)), before, "{name}");
        measure("bbbb", accept).unwrap();
    }
}

#[test]
fn one_bit_of_the_weights_makes_another_model() {
    let (dir, [first, second]) = folder(["first", "second"]);
    let (first, second) = (model(&first, |_| {}), model(&second, one_bit));
    let out = dir.path().join("out");
    let compare = |model: &Path| -> Vec<String> {
        let sizes = "--length 128 --depths 50 --samples 1 --tokens 2 --windows 1 --policies tova";
        let args = ["compare", "--budgets", "48", "--model", text(model), "--out", text(&out)];
        args.into_iter().chain(sizes.split(' ')).map(str::to_owned).collect()
    };
    stdout(compare(&first));
    assert_says(&refused(compare(&second)), &["--other-weights"]);
    stdout(compare(&second).iter().map(String::as_str).chain(["--other-weights"]));

    // A run, of which the sampled fingerprint saw a part.
    let ran = dir.path().join("ran");
    let write = |model: &Path| {
        let task = "[[tasks.perplexity]]\nprompt = 48\ntokens = 2\n";
        run_file_of(model, dir.path(), "run.toml", "", task)
    };
    let file = write(&first);
    let run = ["run", text(&file), "--out", text(&ran), "--no-report"];
    stdout(run);
    write(&second);
    assert_says(&refused(run), &["was made with other weights"]);
    stdout([&run[..], &["--other-weights"]].concat());

    // The profile that lies beside the embedded model is that of its weights, and of no others.
    let headkv = ["generate", "--prompt", "It", "--max-new-tokens", "1", "--policy", "headkv"];
    let beside = first.join("profile.json");
    fs::copy(Path::new(MODEL).join("profile.json"), &beside).unwrap();
    assert!(Profile::from_file(&beside).unwrap().weights.is_some());
    stdout([&headkv[..], &["--model", text(&first)]].concat());
    let other = ["--model", text(&second), "--profile", text(&beside)];
    assert_says(&refused([&headkv[..], &other].concat()), &["profile.json", "other weights"]);
    stdout([&headkv[..], &other, &["--other-weights"]].concat());

    // A damaged one is in the way of those who read it.
    let half = read(&beside);
    fs::write(&beside, &half[..half.len() / 2]).unwrap();
    let args = ["generate", "--prompt", "It", "--max-new-tokens", "1", "--model", text(&first)];
    stdout([&args[..], &["--policy", "tova"]].concat());
    assert_says(&refused([&args[..], &["--policy", "headkv"]].concat()), &["profile.json"]);
}

#[test]
fn foreign_files_are_left_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let line = "the only copy of something\n";
    for (args, _) in commands(dir.path()) {
        if args.iter().any(|arg| arg == "--help") {
            continue;
        }
        let file = match args[0].as_str() {
            "needle" => dir.path().join("needle/results.jsonl"),
            "perplexity" => dir.path().join("nats/results.jsonl"),
            "fidelity" => dir.path().join("near/results.jsonl"),
            "compare" => dir.path().join("table/results.jsonl"),
            "run" => dir.path().join("ran/results.jsonl"),
            "calibrate" => dir.path().join("profile.partial"),
            "tune" => dir.path().join("p.toml.partial"),
            _ => continue,
        };
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        for text in [line, line.trim_end(), "{\"a\":1}\n", "{\"a"] {
            fs::write(&file, text).unwrap();
            let name = file.file_name().unwrap().to_str().unwrap();
            assert_says(&refused(&args), &[name, "left as it is"]);
            assert_eq!(read(&file), text, "{args:?}");
        }
        fs::remove_file(&file).unwrap();
        if args[0] == "run" {
            // Neither are files taken that a run only writes.
            for name in ["run.toml", "plan.jsonl"] {
                let file = dir.path().join("ran").join(name);
                fs::write(&file, line).unwrap();
                assert_says(&refused(&args), &[name]);
                assert_eq!(read(&file), line);
                fs::remove_file(&file).unwrap();
            }
        }
    }
}

/// A folder with a run file and its results.
fn small_run(dir: &Path) -> (PathBuf, PathBuf) {
    let out = dir.join("out");
    let rest = "[[policies]]\nname = \"tova\"\n[[tasks.perplexity]]\nprompt = 48\ntokens = 3\nwindows = 3\n\
                [[tasks.fidelity]]\nprompt = 48\ntokens = 2\n";
    let file = run_file(dir, "small.toml", "budgets = [32]\n", rest);
    stdout(["run", text(&file), "--out", text(&out), "--no-report"]);
    (file, out)
}

#[test]
fn a_damaged_line_is_named_set_aside_and_measured_again() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = small_run(dir.path());
    let results = out.join("results.jsonl");
    let (whole, expected) = (read(&results), records(&results));
    let line = whole.lines().nth(2).unwrap();
    let damaged = whole.replacen(line, &line[..line.len() / 2], 1);
    fs::write(&results, &damaged).unwrap();

    let run = ["run", text(&file), "--out", text(&out), "--no-report"];
    let merged = dir.path().join("merged");
    let merge = ["merge", text(&out), "--out", text(&merged)];
    for args in [&run[..], &merge] {
        assert_says(&refused(args), &["results.jsonl, line 3", "--repair"]);
    }
    assert_eq!(read(&results), damaged);
    // The page says what it leaves out.
    assert_says(&outputs(["report", text(&out)]).1, &["results.jsonl, line 3"]);
    // A merge without it lacks a unit.
    let error = refused([&merge[..], &["--repair"]].concat());
    assert_says(&error, &["1 units of the plan are missing"]);
    assert_eq!(read(&merged.join("results.jsonl")).lines().count(), whole.lines().count() - 1);

    stdout([&run[..], &["--repair"]].concat());
    assert_eq!(records(&results), expected);
    let aside = read(&out.join("results.jsonl.damaged"));
    assert_eq!(aside, format!("{}\n", &line[..line.len() / 2]));
    stdout(run);
}

#[test]
fn a_merge_keeps_every_digit_and_counts_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let (_, out) = small_run(dir.path());
    let results = out.join("results.jsonl");
    // Digits that a number of 64 bits does not hold.
    let mut lines: Vec<String> = read(&results).lines().map(str::to_owned).collect();
    let at = lines[1].find("\"seconds\":").unwrap();
    let end = at + lines[1][at..].find([',', '}']).unwrap();
    lines[1].replace_range(at..end, "\"seconds\":0.10000000000000000555111512312578270");
    let changed = lines.join("\n") + "\n";
    fs::write(&results, &changed).unwrap();
    let merged = dir.path().join("merged");
    stdout(["merge", text(&out), "--out", text(&merged)]);
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&read(&merged.join("results.jsonl"))), sorted(&changed));

    let left = lines.len() - 1;
    fs::write(&results, lines[..left].join("\n") + "\n").unwrap();
    let early = dir.path().join("early");
    let args = ["merge", text(&out), "--out", text(&early)];
    assert_says(&refused(args), &["1 units of the plan are missing"]);
    assert_eq!(read(&early.join("results.jsonl")).lines().count(), left);
    stdout([&args[..], &["--partial"]].concat());
    // Results of another run are not written over.
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let foreign = file(&other, "results.jsonl", "something else\n");
    assert_says(&refused(["merge", text(&out), "--out", text(&other)]), &["left as it is"]);
    assert_eq!(read(&foreign), "something else\n");
}

#[test]
fn results_that_something_else_changes_while_they_are_made_are_an_error() {
    changed_meanwhile(&|path| fs::remove_file(path).unwrap(), "results.jsonl was deleted");
    let append = |path: &Path| {
        let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(b"half a line").unwrap();
    };
    changed_meanwhile(&append, "something else changed it");
}

fn changed_meanwhile(change: &dyn Fn(&Path), said: &str) {
    let (dir, [out]) = folder(["out"]);
    let rest = "[[tasks.perplexity]]\nprompt = 64\ntokens = 16\nwindows = 40\nstride = 8\n";
    let file = run_file(dir.path(), "long.toml", "", rest);
    let child = spawn(["run", text(&file), "--out", text(&out), "--no-report", "--jobs", "1"]);
    let results = out.join("results.jsonl");
    wait_for(&results, 2);
    change(&results);
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_says(&error, &[said]);
}

#[test]
fn a_model_that_overflows_or_finds_nothing_gets_no_profile() {
    let dir = tempfile::tempdir().unwrap();
    let nan = model(&dir.path().join("nan"), |weights| last_norm(weights, 0x7fc0));
    let lost = model(&dir.path().join("lost"), |weights| last_norm(weights, 0));
    let out = dir.path().join("profile.json");
    let calibrate = |model: &Path, more: &str| -> Vec<String> {
        let sizes = format!("calibrate --prompts 2 --tokens 128{more}");
        let files = ["--out", text(&out), "--model", text(model)];
        sizes.split(' ').chain(files).map(str::to_owned).collect()
    };
    assert_says(&refused(calibrate(&nan, " --min-right 0")), &["not a finite number"]);
    assert!(!out.exists());

    fs::remove_file(dir.path().join("profile.json.partial")).unwrap();
    assert_says(&refused(calibrate(&lost, "")), &["0 of 2 prompts right"]);
    assert!(!out.exists());
    // What was measured is there when less is asked for.
    let said = stdout(calibrate(&lost, " --min-right 0"));
    assert!(said.starts_with("WARNING"), "{said}");
    assert!(out.is_file());

    let needle =
        "needle --lengths 128 --depths 50 --samples 1 --policies tova --budgets 48 --model";
    let said = stdout(needle.split(' ').chain([text(&lost)]));
    assert!(said.starts_with("WARNING: on `needle` the full cache scores 0.00"), "{said}");
}

#[test]
fn outputs_are_checked_before_any_work() {
    let (dir, [missing, blocked]) = folder(["no/dir/x.json", "file"]);
    fs::write(&blocked, "").unwrap();
    // The model is looked for behind that, and is not there either.
    for (args, _) in commands(dir.path()) {
        if args.iter().any(|arg| ["--help", "--version"].contains(&arg.as_str())) {
            continue;
        }
        let has_json = args[0] != "report";
        let base: Vec<&str> = args.iter().map(String::as_str).collect();
        let cut = base.iter().position(|arg| arg.starts_with("--out")).unwrap_or(base.len());
        let loads = !["policies", "run", "merge", "report"].contains(&base[0]);
        let model: &[&str] = if loads { &["--model", "no/model"] } else { &[] };
        let out = text(&blocked).to_owned() + "/deep/x.toml";
        let takes_out = cut < base.len();
        if has_json {
            let own: &[&str] = if takes_out { &base[cut..cut + 2] } else { &[] };
            let error = refused([&base[..cut], model, own, &["--json", text(&missing)]].concat());
            assert_says(&error, &["x.json"]);
        }
        if takes_out {
            assert_says(&refused([&base[..cut], model, &["--out", &out]].concat()), &["deep"]);
        }
    }
    assert!(!missing.parent().unwrap().exists());
}

#[test]
fn a_prompt_beyond_the_context_is_refused_with_what_helps() {
    let dir = tempfile::tempdir().unwrap();
    let prose = include_str!("../../briquette-eval/assets/haystack.txt").replace('\n', " ");
    // Some 4,500 tokens.
    let file = file(dir.path(), "long.txt", &prose[..prose.len() * 2 / 3]);
    let args = ["generate", "--file", text(&file), "--max-new-tokens", "1", "--policy"];
    for (policy, helps) in [
        ("streaming-llm:schedule.prefill=at-end", "--policy NAME:schedule.prefill=every-chunk"),
        ("snapkv", "--policy streaming-llm"),
    ] {
        assert_says(&refused([&args[..], &[policy]].concat()), &["context of 4096", helps]);
    }
    stdout([&args[..], &["streaming-llm", "--budget", "64", "--chunk", "512"]].concat());
}

#[test]
fn nothing_in_a_run_file_steers_the_terminal() {
    let (dir, [file]) = folder(["run.toml"]);
    let dry_run = ["run", text(&file), "--dry-run"];
    let write = |rest: &str| run_file(dir.path(), "run.toml", "", rest);
    // A name is in every table and picture of the page, and is refused before anything is measured.
    let task = |label: &str| {
        format!("[[tasks.perplexity]]\nlabel = \"{label}\"\nprompt = 48\ntokens = 2\n")
    };
    let policy = |label: &str| format!("[[policies]]\nname = \"full\"\nlabel = \"{label}\"\n");
    for (label, fault) in [
        ("\\u001b[2Jgone", "a control character, U+001B"),
        ("two\\nlines", "a control character, U+000A"),
        ("a\\u202eb", "a mark of direction, U+202E"),
        ("\\u2066", "a mark of direction, U+2066"),
        ("", "it is empty"),
    ] {
        for (rest, what) in [(task(label), "a task"), (policy(label) + &task("t"), "a policy")] {
            write(&rest);
            let error = refused(dry_run);
            assert_says(&error, &[&format!("the name of {what} is \""), fault]);
            let raw = |c: char| c != '\n' && briquette_eval::steering::steers(c);
            assert!(!error.contains(raw), "{error}");
        }
    }
    for (head, fault) in [
        ("[[models]]\n".to_owned(), "has no `name`: add name = "),
        ("name = \"a\\u009b\"\n[[models]]\n".into(), "the name of the run is \"a\\u{9b}\""),
        ("name = \"n\"\n[[models]]\nlabel = \"\\u0007\"\n".into(), "the name of a model is"),
    ] {
        fs::write(&file, format!("{head}dir = {MODEL:?}\n{}", task("t"))).unwrap();
        assert_says(&refused(dry_run), &[fault]);
    }

    // What is wrong in a long line is shown with its place, not with the line.
    let many: Vec<String> = (0..100_000).map(|seed| seed.to_string()).collect();
    let seeds = |more: &str| {
        let keys = format!("seeds = [{}{more}]\n", many.join(","));
        run_file(dir.path(), "run.toml", &keys, &task("t"))
    };
    seeds(",\"x\"");
    let error = refused(dry_run);
    assert!(error.len() < 1000 && error.contains("`seeds` holds \"x\""), "{error:.1000}");
    // So many are no reason to read a text so many times, or to wait.
    let start = Instant::now();
    seeds("");
    stdout(dry_run);
    assert!(start.elapsed() < Duration::from_secs(30));

    // What asks for more than there is ends before it is made.
    let start = Instant::now();
    for (rest, part) in [
        ("[[tasks.needle]]\nlengths = [1000000000000]\n", "1000000000000 tokens"),
        ("[[tasks.common-words]]\nlengths = [100000000]\n", "100000000 tokens"),
        ("[[tasks.needle]]\nask = []\n", "`ask` is empty"),
        ("[[tasks.gsm8k]]\nfile = \"x.jsonl\"\nask = []\n", "`ask` is empty"),
    ] {
        write(rest);
        assert_says(&refused(dry_run), &[part]);
    }
    assert!(start.elapsed() < Duration::from_secs(30));
}

/// Reading one of these would wait for ever, or until memory ends.
#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = small_run(dir.path());
    let at = |name: &str| dir.path().join(name);
    let pipe = |path: &Path| {
        let _ = fs::remove_file(path);
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    pipe(&at("pipe"));
    std::os::unix::fs::symlink("/dev/zero", at("zero")).unwrap();
    let rest = "[[policies]]\nprefix = \"zero\"\n[[tasks.needle]]\nlengths = [128]\n";
    let zero_toml = run_file(dir.path(), "zero.toml", "", rest);
    let (pipe_path, zero) = (at("pipe"), at("zero"));
    let [pipe_text, zero_text] = [text(&pipe_path), text(&zero)];
    let starts = ["generate", "--prompt", "It", "--max-new-tokens", "1"];
    for path in [pipe_text, zero_text] {
        for option in ["--prefix", "--profile"] {
            let error = refused([&starts[..], &[option, path]].concat());
            assert_says(&error, &[path, "no regular file"]);
        }
        for args in [
            &["run", path][..],
            &["merge", path, "--out", "merged"],
            &["score", path, "--metric", "rouge1"],
            &["generate", "--file", path],
            &["perplexity", "--text", path],
        ] {
            assert_says(&refused(args), &["no regular file"]);
        }
    }
    assert_says(&refused(["run", text(&zero_toml), "--dry-run"]), &["zero", "no regular file"]);

    // Files of a folder of results.
    let run = ["run", text(&file), "--out", text(&out), "--no-report"];
    let (merge, report) = (["merge", text(&out)], ["report", text(&out)]);
    let kept: Vec<(PathBuf, String)> = ["run.toml", "plan.jsonl", "results.jsonl"]
        .map(|name| (out.join(name), read(&out.join(name))))
        .into();
    let shard = out.join("results-1-of-2.jsonl");
    for (name, commands) in [
        ("run.toml", &[&run[..]][..]),
        ("plan.jsonl", &[&run, &merge, &report]),
        ("results.jsonl", &[&run, &merge, &report]),
        ("results-1-of-2.jsonl", &[&merge]),
    ] {
        pipe(&out.join(name));
        for args in commands {
            assert_says(&refused(*args), &[name]);
        }
        let _ = fs::remove_file(&shard);
        for (path, content) in &kept {
            let _ = fs::remove_file(path);
            fs::write(path, content).unwrap();
        }
    }
    std::os::unix::fs::symlink("/dev/zero", &shard).unwrap();
    assert_says(&refused(merge), &["results-1-of-2.jsonl: it is no regular file"]);
}

#[test]
fn measurements_go_on_where_they_were_cut() {
    let dir = tempfile::tempdir().unwrap();
    for (args, files) in commands(dir.path()) {
        if !["needle", "perplexity", "fidelity"].contains(&args[0].as_str()) {
            continue;
        }
        let (results, table) = (&files[0], &files[4]);
        // Times differ from run to run.
        let numbers = || -> Vec<String> {
            let timed = [",prefill,", ",decode,", ",seconds,"];
            let table = read(table);
            let lines = table.lines().filter(|line| !timed.iter().any(|of| line.contains(of)));
            lines.map(str::to_owned).collect()
        };
        stdout(&args);
        let (whole, expected, all) = (read(results), numbers(), records(results));
        let lines: Vec<&str> = whole.split_inclusive('\n').collect();
        assert!(lines.len() >= 3, "{whole}");
        let kept = lines[..2].concat();
        fs::write(results, format!("{kept}{}", &lines[2][..lines[2].len() / 2])).unwrap();
        stdout(&args);
        let again = read(results);
        assert!(again.starts_with(&kept), "{again}");
        assert_eq!(records(results), all, "{args:?}");
        assert_eq!(numbers(), expected, "{args:?}");
        // Nothing is left to do.
        stdout(&args);
        assert_eq!(read(results), again, "{args:?}");
    }
}

/// Waits until a journal has so many results.
fn wait_for(journal: &Path, results: usize) {
    let end = Instant::now() + Duration::from_secs(120);
    while fs::read_to_string(journal).map_or(0, |text| text.lines().count()) <= results {
        assert!(Instant::now() < end, "no results in {}", journal.display());
        thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_a_command_with_its_journal_whole() {
    let (dir, [out]) = folder(["out"]);
    let rest = "[[policies]]\nname = \"tova\"\n[[tasks.perplexity]]\nprompt = 64\ntokens = 16\nwindows = 20\n";
    let file = run_file(dir.path(), "long.toml", "budgets = [32]\n", rest);
    let run = |out| ["run", text(&file), "--no-report", "--keep-going", "--out", out];
    let profile = dir.path().join("profile.json");
    let calibrate = ["calibrate", "--prompts", "6", "--tokens", "256", "--out", text(&profile)];
    for (args, journal, signal) in [
        (&run(text(&out))[..], out.join("results.jsonl"), "-INT"),
        (&calibrate, dir.path().join("profile.json.partial"), "-TERM"),
    ] {
        let child = spawn(args);
        wait_for(&journal, 2);
        common::signal(&child, signal);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(said.contains("the same command goes on") && !said.contains("failed"), "{said}");
        let kept = read(&journal);
        assert!(kept.ends_with('\n'), "{kept}");
        for line in kept.lines() {
            serde_json::from_str::<Value>(line).unwrap();
        }
        let left = fs::read_dir(dir.path())
            .unwrap()
            .chain(fs::read_dir(journal.parent().unwrap()).unwrap());
        let names = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(names.filter(|name| name.starts_with(".briquette")).count(), 0);
        stdout(args);
        if journal.exists() {
            assert!(read(&journal).starts_with(&kept), "{kept}");
        }
    }
    // It is the run that nothing stopped.
    let whole = dir.path().join("whole");
    stdout(run(text(&whole)));
    assert_eq!(records(&out.join("results.jsonl")), records(&whole.join("results.jsonl")));
}
