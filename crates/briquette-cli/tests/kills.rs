//! Commands that are killed at any moment, again and again: what they end with is what nobody
//! disturbed.

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use common::{read, run_file, spawn, stdout};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

/// Kills of each command: a number in this variable, or these.
const KILLS: &str = "BRIQUETTE_KILLS";
const FEW: usize = 3;

/// All numbers and texts in what a command wrote, without dates and times, in one order.
fn content(path: &Path) -> Vec<Value> {
    let text = read(path);
    let mut values: Vec<Value> = match path.extension().and_then(|end| end.to_str()) {
        Some("jsonl") => text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        Some("json") => vec![serde_json::from_str(&text).unwrap()],
        // A remark may hold a date.
        _ => text.lines().filter(|line| !line.starts_with('#')).map(Into::into).collect(),
    };
    values.iter_mut().filter_map(Value::as_object_mut).for_each(|line| {
        line.retain(|key, _| key != "date" && !key.ends_with("seconds"));
    });
    values.sort_by_key(Value::to_string);
    values
}

/// The arguments of a command that writes under `dir`, and what it ends with.
fn commands(dir: &Path) -> Vec<(Vec<String>, PathBuf)> {
    let rest = "[[policies]]\nname = \"tova\"\n[[tasks.perplexity]]\nprompt = 64\ntokens = 8\nwindows = 12\n\
                [[tasks.needle]]\nlengths = [128]\ndepths = [0, 50, 100]\nsamples = 1\n";
    let file = run_file(dir, "run.toml", "budgets = [32]\n", rest);
    let grid = "--policies tova --budgets 48 --depths 0,50,100 --samples 2";
    let of = |line: String, out: &str, file: &str| {
        let words = line.split(' ').map(str::to_owned);
        let out = dir.join(out);
        let args = words.chain(["--out".into(), out.to_str().unwrap().into()]).collect();
        (args, if file.is_empty() { out } else { out.join(file) })
    };
    vec![
        of(format!("run --no-report {}", file.display()), "ran", "results.jsonl"),
        of("calibrate --prompts 4 --tokens 160".into(), "profile.json", ""),
        of(format!("needle --lengths 160 {grid}"), "needle", "results.jsonl"),
        of(format!("compare --length 160 --tokens 4 --windows 4 {grid}"), "table", "results.jsonl"),
        of(
            "tune --target-ratio 0.5 --length 160 --tokens 4 --windows 4 --policies tova,snapkv"
                .into(),
            "mine.toml",
            "",
        ),
    ]
}

#[test]
fn a_command_that_was_killed_ends_with_what_it_would_have() {
    let kills = std::env::var(KILLS).ok().and_then(|kills| kills.parse().ok()).unwrap_or(FEW);
    let (quiet, disturbed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut rng = ChaCha8Rng::seed_from_u64(22);
    for ((whole, expected), (args, found)) in
        commands(quiet.path()).into_iter().zip(commands(disturbed.path()))
    {
        let start = Instant::now();
        stdout(whole);
        let time = start.elapsed();
        let mut killed = 0;
        for _ in 0..kills {
            let mut child = spawn(&args);
            thread::sleep(time.mul_f64(rng.random_range(0.05..0.9)).min(Duration::from_secs(20)));
            let ended = child.try_wait().unwrap();
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            match ended {
                // It had come to its end before.
                Some(status) => {
                    let error = String::from_utf8_lossy(&output.stderr).into_owned();
                    assert!(status.success(), "{args:?}: {error}");
                    break;
                }
                None => killed += 1,
            }
        }
        println!("{}: killed {killed} times", args[0]);
        assert!(killed > 0, "{args:?} was never killed");
        stdout(&args);
        let (expected, found) = (content(&expected), content(&found));
        assert_eq!(found, expected, "{args:?}");
    }
    // What was being written when a kill came may be left beside its place, and nowhere else.
    for entry in fs::read_dir(disturbed.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let known = ["run.toml", "ran", "profile.json", "needle", "table", "mine.toml"];
        assert!(known.contains(&name.as_str()) || name.starts_with(".briquette-"), "{name}");
    }
}
