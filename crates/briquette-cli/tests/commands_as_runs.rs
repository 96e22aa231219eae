//! `needle`, `perplexity`, `fidelity` and `compare` are run files with one or two tasks.

mod common;

use std::fs;

use common::{
    assert_says, command, done, file, json, read, records, refused, refused_with, stdout, text,
};
use serde_json::Value;

const NEEDLE: &str = "needle --lengths 256 --depths 0,50,100 --samples 2 --policies tova,snapkv:kernel=15,h2o --budgets 64";
const PERPLEXITY: &str =
    "perplexity --length 128 --tokens 8 --windows 2 --policies tova,kvmerger --budgets 48";
const FIDELITY: &str =
    "fidelity --length 128 --tokens 8 --windows 2 --policies streaming-llm,ems --budgets 48";
const COMPARE: &str = "compare --length 128 --depths 50 --samples 1 --tokens 4 --windows 2 --policies tova,snapkv --budgets 48 \
                       --change kernel=15";

#[test]
fn the_run_file_that_is_left_gives_the_same() {
    let dir = tempfile::tempdir().unwrap();
    for command in [NEEDLE, PERPLEXITY, FIDELITY, COMPARE] {
        let [out, again] = ["out", "again"]
            .map(|name| dir.path().join(format!("{name}-{}", command.split(' ').next().unwrap())));
        stdout(command.split_whitespace().chain(["--out", text(&out)]));
        stdout(["run", text(&out.join("run.toml")), "--out", text(&again), "--no-report"]);
        let [found, expected] = [&again, &out].map(|dir| records(&dir.join("results.jsonl")));
        assert!(expected.len() > 3, "{expected:?}");
        assert_eq!(found, expected, "{command}");
    }
}

/// Paths on the command line begin where it is called, and those of the run file at the root.
#[test]
fn the_run_file_is_of_use_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), "mine.toml", stdout(["policies", "tova"]));
    file(dir.path(), "t.txt", "It was a bright cold day in April. ".repeat(40));
    let sizes =
        "perplexity --text t.txt --policies mine.toml --length 48 --tokens 4 --samples 2 --out out";
    done(command(sizes.split(' ')).current_dir(dir.path()));
    let [file, again] = ["out/run.toml", "again"].map(|name| dir.path().join(name));
    stdout(["run", text(&file), "--out", text(&again), "--no-report"]);
    let found = records(&again.join("results.jsonl"));
    assert_eq!(found.len(), 2 * 2);
    assert_eq!(found, records(&dir.path().join("out/results.jsonl")));
}

/// Without a folder nothing is kept.
#[test]
fn nothing_is_left_without_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    for (line, task) in [(NEEDLE, "needle"), (FIDELITY, "fidelity")] {
        let mut command = command(line.split_whitespace().chain(["--json", "-"]));
        let (report, _) = done(command.current_dir(dir.path()));
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!((&report["run"], &report["results"]), (&task.into(), &Value::Null));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

/// A single sample has no spread: its difference to the full cache stands alone.
#[test]
fn a_single_window_has_no_error() {
    let sizes =
        "perplexity --length 128 --tokens 8 --policies tova --budgets 48 --windows".split(' ');
    let [one, two] = ["1", "2"].map(|windows| stdout(sizes.clone().chain([windows])));
    assert!(one.contains("+0.000") && !one.contains('±'), "{one}");
    assert!(two.contains("+0.000 ± 0.000"), "{two}");
}

/// The rows of a command by policy and question, with a number of each.
fn rows(command: &str, number: impl Fn(&Value) -> Vec<f64>) -> Vec<(String, Vec<f64>)> {
    let report = json(command.split_whitespace());
    let name = |row: &Value| {
        let ask = row["ask"].as_str().unwrap_or("");
        format!("{} {ask}", row["policy"].as_str().unwrap()).trim().to_owned()
    };
    let rows = report["rows"].as_array().unwrap().iter();
    rows.map(|row| (name(row), number(row))).collect()
}

fn assert_close(found: &[(String, Vec<f64>)], expected: &[(&str, &[f64])]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((name, numbers), (expected_name, expected)) in found.iter().zip(expected) {
        assert_eq!(name, expected_name);
        for (found, expected) in numbers.iter().zip(*expected) {
            assert!((found - expected).abs() < 1e-5, "{name}: {numbers:?}");
        }
    }
}

/// Numbers of 2026-11-27 by the engine that these commands had of their own.
#[test]
fn numbers_are_those_of_the_engine_before() {
    let f64_of = |value: &Value| value.as_f64().unwrap();
    let needle = rows(NEEDLE, |row| {
        let right = &row["beside"]["right-tokens"]["mean"];
        vec![f64_of(&row["mean"]["mean"]), f64_of(right), f64_of(&row["held_of_full"])]
    });
    assert_close(
        &needle,
        &[
            ("full before", &[1.0, 1.0, 1.015_625]),
            ("tova before", &[0.0, 1.0 / 3.0, 0.262_776]),
            ("snapkv:kernel=15 before", &[1.0 / 3.0, 0.809_524, 0.278_799]),
            ("h2o before", &[0.0, 1.0 / 3.0, 0.258_824]),
            ("full after", &[1.0, 1.0, 1.015_625]),
            ("tova after", &[0.0, 0.142_857, 0.262_776]),
            ("snapkv:kernel=15 after", &[0.0, 0.404_762, 0.278_799]),
            ("h2o after", &[0.0, 0.309_524, 0.258_824]),
        ],
    );
    let nats = rows(PERPLEXITY, |row| {
        vec![
            f64_of(&row["mean"]["mean"]),
            f64_of(&row["over_full"]["mean"]),
            f64_of(&row["over_full"]["error"]),
            f64_of(&row["held_of_full"]),
        ]
    });
    assert_close(
        &nats,
        &[
            ("full", &[3.244_181, 0.0, 0.0, 1.015_625]),
            ("tova", &[3.348_141, 0.103_961, 0.106_963, 0.373_219]),
            ("kvmerger", &[3.299_023, 0.054_842, 0.019_190, 0.427_217]),
        ],
    );
    let fidelity = rows(FIDELITY, |row| {
        let beside = |name: &str| f64_of(&row["beside"][name]["mean"]);
        let kl = f64_of(&row["mean"]["mean"]);
        vec![kl, beside("agreement"), beside("overlap"), beside("output-error")]
    });
    assert_close(
        &fidelity,
        &[
            ("streaming-llm", &[0.017_868, 0.9375, 0.558_594, 0.312_690]),
            ("ems", &[0.016_287, 0.875, 0.642_117, 0.260_999]),
        ],
    );
}

/// Files of a run that somebody else wrote stay as they are.
#[test]
fn files_of_others_in_the_folder_are_refused() {
    for (command, name) in
        [(NEEDLE, "run.toml"), (PERPLEXITY, "plan.jsonl"), (FIDELITY, "run.toml")]
    {
        let dir = tempfile::tempdir().unwrap();
        let file = file(dir.path(), name, "{\"mine\":1}\n");
        let error = refused(command.split_whitespace().chain(["--out", text(dir.path())]));
        assert_says(&error, &[name, "not written by briquette"]);
        assert_eq!(read(&file), "{\"mine\":1}\n");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{command}");
    }
}

/// Labels, and what is taken where nothing is named.
#[test]
fn several_needles_are_a_task_of_their_own_and_budgets_have_a_default() {
    let args = "needle --policies h2o --lengths 256 --depths 50 --samples 1 --needles 2";
    let report = json(args.split(' '));
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["task"] == "needle-2keys"), "{rows:?}");
    let budgets: Vec<&str> = rows.iter().map(|row| row["budget"].as_str().unwrap()).collect();
    assert_eq!(budgets, ["-", "128", "256", "-", "128", "256"]);
}

#[test]
fn a_batch_of_none_is_refused() {
    for command in ["needle", "perplexity", "fidelity", "compare"] {
        assert_says(&refused_with(2, [command, "--batch", "0"]), &["--batch"]);
    }
}
