//! Output of the command: widths, silence, completions, manual, hints.

mod common;

use std::{ffi::OsStr, fs, path::Path};

use common::{
    WEIGHTS, assert_says, briquette, command, copy_model, done, folder, json, outputs, read,
    refused, refused_with, stdout, text,
};

/// Stdout on a terminal of so many columns.
#[track_caller]
fn shown<A: AsRef<OsStr>>(columns: Option<&str>, args: impl IntoIterator<Item = A>) -> String {
    done(command(args).envs(columns.map(|columns| ("COLUMNS", columns)))).0
}

fn widest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

const NEEDLE: &str = "needle --lengths 128 --depths 50 --samples 1 --policies tova --budgets 48";

#[test]
fn tables_fit_the_terminal_and_are_whole_where_asked_for() {
    let needle: Vec<&str> = NEEDLE.split(' ').collect();
    for args in [&["policies"][..], &needle] {
        for (columns, width) in [(Some("80"), 80), (None, 100), (Some("120"), 120)] {
            let shown = shown(columns, args);
            let table: Vec<&str> =
                shown.lines().filter(|line| line.contains(['│', '┆', '╞', '┌'])).collect();
            assert!(widest(&table.join("\n")) <= width, "{columns:?}: {shown}");
            assert!(shown.contains("tova"), "{shown}");
        }
        let wide = shown(Some("80"), [args, &["--wide"]].concat());
        assert!(widest(&wide) >= 99 && !wide.contains("(--wide shows"), "{wide}");
    }
    assert_says(&shown(Some("80"), ["policies"]), &["(--wide shows paper too)"]);
    // A number and its interval are whole, or the interval is left out.
    let narrow = shown(Some("80"), &needle);
    for line in narrow.lines().filter(|line| line.contains(" tova ")) {
        assert_eq!(line.matches('[').count(), line.matches(']').count(), "{narrow}");
    }
    // What they are is said where they are.
    for columns in ["60", "80", "200"] {
        let shown = shown(Some(columns), &needle);
        assert_eq!(shown.contains("95 % intervals"), shown.contains('['), "{columns}: {shown}");
    }
    assert_says(&shown(Some("200"), &needle), &["\nBrackets are 95 % intervals over samples\n"]);
}

#[test]
fn every_table_of_a_measurement_fits_80_columns() {
    for task in ["perplexity", "fidelity"] {
        let policies = ["--policies", "streaming-llm,snapkv:kernel=15", "--budgets", "48,12.5%"];
        let sizes = ["--length", "128", "--tokens", "8", "--windows", "2"];
        let shown = shown(Some("80"), [&[task], &sizes[..], &policies].concat());
        let table: Vec<&str> = shown.lines().filter(|line| line.contains(['│', '┆'])).collect();
        assert!(widest(&table.join("\n")) <= 80 && !table.is_empty(), "{shown}");
        assert!(shown.contains("(--wide shows"), "{shown}");
    }
}

#[test]
fn tables_are_for_programs_too() {
    let of = |format| shown(Some("80"), NEEDLE.split(' ').chain(["--format", format]));
    let tsv = of("tsv");
    let lines: Vec<Vec<&str>> = tsv.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(lines.len(), 3, "{tsv}");
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{tsv}");
    assert!(lines[0].contains(&"query-aware") && lines[2].contains(&"tova"), "{tsv}");
    let markdown = of("markdown");
    assert!(markdown.lines().all(|line| line.starts_with('|')), "{markdown}");
    let json: serde_json::Value = serde_json::from_str(&of("json")).unwrap();
    assert!(json["rows"].is_array(), "{json}");
}

/// The tables are in one place: not beside it on stderr, which names the files that were written.
#[test]
fn what_is_for_programs_is_not_on_stderr_too() {
    let (_dir, [path]) = folder(["devices.json"]);
    let file = text(&path);
    for format in ["tsv", "markdown", "json"] {
        let args = ["devices", "--format", format];
        for (json, names) in [(&[][..], false), (&["--json", file], true)] {
            let (result, said) = outputs([&args[..], json].concat());
            assert!(result.contains("flex") && !said.contains("ready"), "{format}: {said}");
            assert_eq!(said.contains(file), names, "{format}: {said}");
            assert!(said.contains("--features"), "{format}: {said}");
        }
        serde_json::from_str::<serde_json::Value>(&read(&path)).unwrap();
        fs::remove_file(file).unwrap();
        // JSON on stdout is alone there.
        let (result, said) = outputs([&args[..], &["--json", "-"]].concat());
        serde_json::from_str::<serde_json::Value>(&result).unwrap();
        assert!(!said.contains("ready"), "{format}");
    }
    // Text stands left in Markdown, numbers right.
    let rule = |args: &[&str]| {
        let text = stdout(args);
        text.lines().nth(1).unwrap().replace(['-', ' '], "")
    };
    assert_eq!(rule(&["devices", "--format", "markdown"]), "|||:|");
    assert_eq!(rule(&["policies", "--format", "markdown"]), "||||");
}

#[test]
fn devices_and_version_say_what_was_built() {
    assert_says(&stdout(["devices"]), &["flex", "ready"]);
    assert_eq!(json(["devices"])["devices"][0]["name"], "flex");
    assert_says(&stdout(["--version"]), &["Burn ", "flex"]);
}

#[test]
fn help_is_short_or_has_examples() {
    for command in ["generate", "needle", "run", "tune", "chat"] {
        let short = stdout([command, "-h"]);
        assert!(short.lines().count() < 70 && !short.contains("Examples:"), "{short}");
        assert_says(&stdout([command, "--help"]), &["Examples:\n  briquette ", "Output:\n"]);
    }
}

#[test]
fn the_environment_names_model_and_device() {
    for (name, value) in [("BRIQUETTE_DEVICE", "abacus"), ("BRIQUETTE_MODEL", "no/such/model")] {
        let output = command(["generate", "--prompt", "It"]).env(name, value).output().unwrap();
        assert_says(&String::from_utf8(output.stderr).unwrap(), &[value]);
    }
}

#[test]
fn quiet_leaves_results_and_errors() {
    let generate = ["generate", "--prompt", "It was", "--max-new-tokens", "3", "--device", "flex"];
    let (_, said) = outputs(generate);
    assert_says(&said, &["policy   snapkv"]);
    let (text, quiet) = outputs([&generate[..], &["--quiet"]].concat());
    assert!(quiet.is_empty() && !text.is_empty(), "{quiet}");
    let failed = refused(["-q", "generate", "--prompt", "It", "--policy", "nosuch"]);
    assert!(failed.starts_with("error: ") && failed.contains("nosuch"), "{failed}");
    refused_with(2, ["policies", "-q", "-v"]);
    // A device without kernels says so where more is asked for.
    assert!(!said.contains("was not answered by a kernel"), "{said}");
    let (_, verbose) = outputs([&generate[..], &["--verbose"]].concat());
    assert_says(&verbose, &["was not answered by a kernel"]);
}

#[test]
fn shells_and_manual_know_every_command() {
    let commands = ["generate", "needle", "run", "tune", "score", "policies", "completions"];
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert_says(&stdout(["completions", shell]), &commands);
    }
    assert_says(&stdout(["completions", "bash"]), &["streaming-llm"]);
    let page = stdout(["man"]);
    assert!(page.contains(".TH briquette") && commands.iter().all(|name| page.contains(name)));
    let (_dir, [out]) = folder(["man"]);
    stdout(["man", "--out", text(&out)]);
    let help = stdout(["--help"]);
    let (_, codes) = help.split_once("Exit codes:\n").unwrap();
    let codes = codes.lines().filter_map(|line| line.trim_start().split_once("  "));
    let codes: Vec<String> = codes.map(|(code, why)| format!(".TP\n{code}\n{why}\n")).collect();
    assert!(codes.len() == 4 && page.ends_with(&codes.concat()), "{codes:?}\n{page}");
    for command in commands {
        let page = read(&out.join(format!("briquette-{command}.1")));
        let sections = [".SH \"EXIT STATUS\"", ".SH FILES", ".SH ENVIRONMENT"];
        assert_says(&page, &[&[".TH ", command][..], &sections].concat());
    }
}

/// The options that a command cannot do without, by its usage.
fn required(command: &str) -> Vec<String> {
    let help = stdout([command, "--help"]);
    let usage = help.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap();
    usage.split(' ').filter(|word| word.starts_with("--")).map(str::to_owned).collect()
}

/// The page on evaluation names the options that its commands need, and no others as such.
#[test]
fn the_book_says_what_each_command_needs() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/evaluate.md");
    let page = read(Path::new(page));
    let rows = page
        .lines()
        .filter(|line| line.contains("| [`briquette ") || line.contains("| `briquette "));
    let mut seen = 0;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [_, commands, needs] = cells[..] else { panic!("{row}") };
        let quoted = |cell: &str| -> Vec<String> {
            cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        let mut expected = Vec::new();
        for command in quoted(commands) {
            expected.extend(required(command.split(' ').nth(1).unwrap()));
            seen += 1;
        }
        let named: Vec<String> =
            quoted(needs).into_iter().filter(|name| name.starts_with("--")).collect();
        assert_eq!(named, expected, "{row}");
    }
    assert!(seen > 8, "{seen} commands");
}

#[test]
fn an_error_names_the_option_that_helps() {
    let generate = ["generate", "--prompt", "It", "--max-new-tokens", "1"];
    for (more, helps) in [
        (&["--policy", "snapkv", "--budget", "8"][..], "--budget"),
        (&["--device", "abacus"], "--device"),
        (&["--policy", "local-window", "--budget", "1KiB"], "--budget"),
    ] {
        let error = refused([&generate[..], more].concat());
        assert!(error.starts_with("error: ") && error.contains(helps), "{error}");
    }
    // A model without a profile.
    let dir = tempfile::tempdir().unwrap();
    copy_model(dir.path(), &WEIGHTS);
    let model = ["--model", text(dir.path()), "--policy", "headkv"];
    let error = refused([&generate[..], &model].concat());
    assert!(error.contains("--profile FILE") && !error.contains("with_profile"), "{error}");
    // A size is said as it was given.
    let args = [&generate[..], &["--policy", "d2o", "--budget", "512KiB"]].concat();
    let error = String::from_utf8(briquette(args).stderr).unwrap();
    assert!(!error.contains("524288"), "{error}");
}
