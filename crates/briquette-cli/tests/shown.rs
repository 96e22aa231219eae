//! Output of the command: widths, silence, completions, manual, hints.

use std::{
    fs,
    process::{Command, Output, Stdio},
};

fn briquette(columns: Option<&str>, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_briquette"));
    command.args(args).stdin(Stdio::null()).env_remove("COLUMNS");
    if let Some(columns) = columns {
        command.env("COLUMNS", columns);
    }
    command.output().unwrap()
}

fn stdout(columns: Option<&str>, args: &[&str]) -> String {
    let output = briquette(columns, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn stderr(args: &[&str]) -> String {
    String::from_utf8(briquette(None, args).stderr).unwrap()
}

fn widest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

const NEEDLE: [&str; 11] = [
    "needle",
    "--lengths",
    "128",
    "--depths",
    "50",
    "--samples",
    "1",
    "--policies",
    "tova",
    "--budgets",
    "48",
];

#[test]
fn tables_fit_the_terminal_and_are_whole_where_asked_for() {
    for args in [&["policies"][..], &NEEDLE] {
        for (columns, width) in [(Some("80"), 80), (None, 100), (Some("120"), 120)] {
            let shown = stdout(columns, args);
            let table: Vec<&str> =
                shown.lines().filter(|line| line.contains(['│', '┆', '╞', '┌'])).collect();
            assert!(widest(&table.join("\n")) <= width, "{columns:?}: {shown}");
            assert!(shown.contains("tova"), "{shown}");
        }
        let wide = stdout(Some("80"), &[args, &["--wide"]].concat());
        assert!(widest(&wide) >= 99 && !wide.contains("(--wide shows"), "{wide}");
    }
    let narrow = stdout(Some("80"), &["policies"]);
    assert!(narrow.contains("(--wide shows paper too)"), "{narrow}");
    // A number and its interval are whole, or the interval is left out.
    let narrow = stdout(Some("80"), &NEEDLE);
    for line in narrow.lines().filter(|line| line.contains(" tova ")) {
        assert_eq!(line.matches('[').count(), line.matches(']').count(), "{narrow}");
    }
    // What they are is said where they are.
    for columns in ["60", "80", "200"] {
        let shown = stdout(Some(columns), &NEEDLE);
        assert_eq!(shown.contains("95 % intervals"), shown.contains('['), "{columns}: {shown}");
    }
    assert!(stdout(Some("200"), &NEEDLE).contains("\nBrackets are 95 % intervals over samples\n"));
}

#[test]
fn tables_are_for_programs_too() {
    let of = |format: &str| stdout(Some("80"), &[&NEEDLE[..], &["--format", format]].concat());
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
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("devices.json");
    let file = file.to_str().unwrap();
    for format in ["tsv", "markdown", "json"] {
        let args = ["devices", "--format", format];
        for (json, names) in [(&[][..], false), (&["--json", file], true)] {
            let output = briquette(None, &[&args[..], json].concat());
            let [said, result] =
                [output.stderr, output.stdout].map(|text| String::from_utf8(text).unwrap());
            assert!(result.contains("flex") && !said.contains("ready"), "{format}: {said}");
            assert_eq!(said.contains(file), names, "{format}: {said}");
            assert!(said.contains("--features"), "{format}: {said}");
        }
        let written = fs::read_to_string(file).unwrap();
        serde_json::from_str::<serde_json::Value>(&written).unwrap();
        fs::remove_file(file).unwrap();
        // JSON on stdout is alone there.
        let output = briquette(None, &[&args[..], &["--json", "-"]].concat());
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
        assert!(!String::from_utf8(output.stderr).unwrap().contains("ready"), "{format}");
    }
    // Text stands left in Markdown, numbers right.
    let rule = |args: &[&str]| {
        let text = stdout(None, args);
        text.lines().nth(1).unwrap().replace(['-', ' '], "")
    };
    assert_eq!(rule(&["devices", "--format", "markdown"]), "|||:|");
    assert_eq!(rule(&["policies", "--format", "markdown"]), "||||");
}

#[test]
fn devices_and_version_say_what_was_built() {
    let devices = stdout(None, &["devices"]);
    assert!(devices.contains("flex") && devices.contains("ready"), "{devices}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(None, &["devices", "--json", "-"])).unwrap();
    assert_eq!(json["devices"][0]["name"], "flex");
    let version = stdout(None, &["--version"]);
    assert!(version.contains("Burn ") && version.contains("flex"), "{version}");
}

#[test]
fn help_is_short_or_has_examples() {
    for command in ["generate", "needle", "run", "tune", "chat"] {
        let (short, long) = (stdout(None, &[command, "-h"]), stdout(None, &[command, "--help"]));
        assert!(short.lines().count() < 70 && !short.contains("Examples:"), "{short}");
        assert!(long.contains("Examples:\n  briquette "), "{long}");
        assert!(long.contains("Output:\n"), "{long}");
    }
}

#[test]
fn the_environment_names_model_and_device() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_briquette"));
    command.args(["generate", "--prompt", "It"]).env("BRIQUETTE_DEVICE", "abacus");
    let error = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(error.contains("abacus"), "{error}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_briquette"));
    command.args(["generate", "--prompt", "It"]).env("BRIQUETTE_MODEL", "no/such/model");
    let error = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(error.contains("no/such/model"), "{error}");
}

#[test]
fn quiet_leaves_results_and_errors() {
    let generate = ["generate", "--prompt", "It was", "--max-new-tokens", "3", "--device", "flex"];
    let said = stderr(&generate);
    assert!(said.contains("policy   snapkv"), "{said}");
    let quiet = briquette(None, &[&generate[..], &["--quiet"]].concat());
    assert!(quiet.stderr.is_empty() && !quiet.stdout.is_empty(), "{quiet:?}");
    let failed = stderr(&["-q", "generate", "--prompt", "It", "--policy", "nosuch"]);
    assert!(failed.starts_with("error: ") && failed.contains("nosuch"), "{failed}");
    assert_eq!(briquette(None, &["policies", "-q", "-v"]).status.code(), Some(2));
    // A device without kernels says so where more is asked for.
    assert!(!said.contains("was not answered by a kernel"), "{said}");
    let verbose = stderr(&[&generate[..], &["--verbose"]].concat());
    assert!(verbose.contains("was not answered by a kernel"), "{verbose}");
}

#[test]
fn shells_and_manual_know_every_command() {
    let commands = ["generate", "needle", "run", "tune", "score", "policies", "completions"];
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = stdout(None, &["completions", shell]);
        assert!(commands.iter().all(|command| script.contains(command)), "{shell}");
    }
    let bash = stdout(None, &["completions", "bash"]);
    assert!(bash.contains("streaming-llm"), "methods are completed");
    let page = stdout(None, &["man"]);
    assert!(page.contains(".TH briquette") && commands.iter().all(|name| page.contains(name)));
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("man");
    stdout(None, &["man", "--out", out.to_str().unwrap()]);
    let help = stdout(None, &["--help"]);
    let (_, codes) = help.split_once("Exit codes:\n").unwrap();
    let codes = codes.lines().filter_map(|line| line.trim_start().split_once("  "));
    let codes: Vec<String> = codes.map(|(code, why)| format!(".TP\n{code}\n{why}\n")).collect();
    assert!(codes.len() == 4 && page.ends_with(&codes.concat()), "{codes:?}\n{page}");
    for command in commands {
        let file = out.join(format!("briquette-{command}.1"));
        let page = fs::read_to_string(file).unwrap();
        assert!(page.contains(".TH ") && page.contains(command), "{page}");
        for section in [".SH \"EXIT STATUS\"", ".SH FILES", ".SH ENVIRONMENT"] {
            assert!(page.contains(section), "{command}: {section}");
        }
    }
}

/// The options that a command cannot do without, by its usage.
fn required(command: &str) -> Vec<String> {
    let help = stdout(None, &[command, "--help"]);
    let usage = help.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap();
    usage.split(' ').filter(|word| word.starts_with("--")).map(str::to_owned).collect()
}

/// The page on evaluation names the options that its commands need, and no others as such.
#[test]
fn the_book_says_what_each_command_needs() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/evaluate.md");
    let page = fs::read_to_string(page).unwrap();
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
        let error = stderr(&[&generate[..], more].concat());
        assert!(error.starts_with("error: ") && error.contains(helps), "{error}");
    }
    // A model without a profile.
    let dir = tempfile::tempdir().unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/ember-7m");
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(format!("{model}/{name}"), dir.path().join(name)).unwrap();
    }
    let model = ["--model", dir.path().to_str().unwrap(), "--policy", "headkv"];
    let error = stderr(&[&generate[..], &model].concat());
    assert!(error.contains("--profile FILE") && !error.contains("with_profile"), "{error}");
    // A size is said as it was given.
    let error = stderr(&[&generate[..], &["--policy", "d2o", "--budget", "512KiB"]].concat());
    assert!(!error.contains("524288"), "{error}");
}
