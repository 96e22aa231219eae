//! `briquette report` on results that lack things.

mod common;

#[path = "../../briquette-report/tests/made_up/mod.rs"]
#[allow(dead_code)]
mod made_up;

use std::fs;

use briquette_eval::{
    record::{CacheBytes, Record},
    tasks::Question,
};
use common::{assert_says, file, outputs, read, refused, refused_with, text};
use made_up::{HOSTILE, answers, record};

/// Results of one policy on `samples` questions.
fn results(samples: usize) -> Vec<Record> {
    let cache = CacheBytes { bytes: 30, spare: Some(10), full: 100 };
    let one = |sample| {
        let outcome = answers(&[], HOSTILE, &[1.0], cache);
        record("snapkv", "64", "tiny", sample, Some(Question::Before), outcome)
    };
    (0..samples).map(one).collect()
}

/// Runs name no such labels any more, but results made earlier have their page too.
#[test]
fn labels_that_steer_or_compute_have_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let cache = CacheBytes { bytes: 30, spare: Some(10), full: 100 };
    let labels =
        ["\u{1b}[31mX\u{7}\u{9b}\u{202e}", "=cmd|' /C calc'!A0", "+1", "@x", "-y", "\u{ffff}"];
    let one = |label: &&str| {
        let outcome = answers(&[], HOSTILE, &[1.0], cache);
        record(label, "64", label, 0, Some(Question::Before), outcome)
    };
    made_up::write(&dir.path().join("results.jsonl"), &labels.iter().map(one).collect::<Vec<_>>());
    outputs(["report", text(dir.path())]);
    let table = read(&dir.path().join("report/report.csv"));
    let rows = || table.lines().skip(1);
    for label in ["'=cmd|", "'+1", "'@x", "'-y"] {
        assert!(rows().any(|row| row.contains(&format!(",{label}"))), "{label}: {table}");
    }
    let cells = || rows().flat_map(|row| row.split(','));
    assert!(!cells().any(|cell| cell.starts_with(['=', '+', '@', '\t'])), "{table}");
    // Numbers stay numbers.
    let numbers = cells().filter(|cell| cell.starts_with('-') && *cell != "-");
    assert!(numbers.clone().all(|cell| cell.parse::<f64>().is_ok()), "{table}");
}

#[test]
fn the_command_writes_the_page_and_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let missing = "holds neither results.jsonl nor results-I-of-N.jsonl";
    assert_says(&refused(["report", &path("")]), &[missing]);

    let records = results(3);
    for shard in 1..=2 {
        let file = dir.path().join(format!("results-{shard}-of-2.jsonl"));
        made_up::write(&file, &records[shard - 1..=shard]);
    }
    let cut = dir.path().join("results-2-of-2.jsonl");
    let whole = read(&cut);
    fs::write(&cut, format!("{whole}{{\"model\":\"emb")).unwrap();
    let plan = results(5);
    let keys = plan.iter().map(|record| serde_json::to_string(&record.key).unwrap() + "\n");
    file(dir.path(), "plan.jsonl", keys.collect::<String>());
    let out = path("elsewhere.html");
    let (said, warned) = outputs(["report", &path(""), "--out", &out, "--title", "Two <shards>"]);
    assert_says(&said, &["3 records; report.csv, differences.csv, tables.md and "]);
    let cut_short = "results-2-of-2.jsonl is cut short";
    let missing = "2 of 5 units of the run are missing";
    assert_says(&warned, &[cut_short, "1 record of a unit that was read before", missing]);
    let page = fs::read_to_string(out).unwrap();
    assert!(page.contains("<h1>Two &lt;shards&gt;</h1>"));
    // The page may be far from the files, and says the same without their names.
    let top = &page[page.find("<header>").unwrap()..page.find("</header>").unwrap()];
    assert_says(top, &["The last line of the results is cut short"]);
    assert!(!top.contains("of-2.jsonl") && !top.contains(&path("")), "{top}");

    let (said, _) = outputs(["report", &path(""), "--tables", "latex"]);
    assert_says(&said, &["tables.md, tables.tex and "]);
    assert!(dir.path().join("report/tables.tex").is_file());
    // `--format` is that of the tables on stdout, which this command has none of.
    refused_with(2, ["report", &path(""), "--format", "latex"]);

    fs::write(&cut, whole.replacen("\"seed\":0", "\"seed\":\"x\"", 1)).unwrap();
    let (_, warned) = outputs(["report", &path("")]);
    assert_says(&warned, &["results-2-of-2.jsonl, line 2: "]);
}
