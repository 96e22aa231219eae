//! `briquette calibrate` and what reads its profile, as their users run them.

mod common;

use std::{fs, thread, time::Duration};

use briquette::{HeadScoreKind, Profile};
use common::{
    WEIGHTS, assert_says, copy_model, file, folder, json, read, refused, spawn, stdout, text,
};
use serde_json::Value;

#[test]
fn a_killed_calibration_goes_on_and_ends_with_the_same_bytes() {
    let (dir, [whole, killed]) = folder(["whole.json", "killed.json"]);
    let prose = include_str!("../../briquette-eval/assets/haystack.txt");
    let prose = file(dir.path(), "prose.txt", prose);
    let calibrate = |out| {
        ["calibrate", "--prompts", "6", "--tokens", "128,160", "--text", text(&prose), "--out", out]
    };
    stdout(calibrate(text(&whole)));
    let profile = Profile::from_file(&whole).unwrap();
    assert!((profile.layer_errors.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{profile:?}");
    assert!(profile.made.contains("prose.txt") && profile.made.contains("seed 0"), "{profile:?}");
    for kind in HeadScoreKind::ALL {
        let scores = profile.heads.get(kind);
        let best = scores.iter().flatten().copied().fold(0.0, f64::max);
        assert!(best > 0.5 && best <= 1.0 + 1e-6, "{kind:?} {best}");
    }
    assert!(!dir.path().join("whole.json.partial").exists());

    let partial = dir.path().join("killed.json.partial");
    let mut child = spawn(calibrate(text(&killed)));
    let lines = || fs::read_to_string(&partial).map_or(0, |text| text.lines().count());
    while child.try_wait().unwrap().is_none() && lines() < 15 {
        thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    if let Ok(kept) = fs::read(&partial) {
        // As if it had been killed in the middle of a line.
        fs::write(&partial, &kept[..kept.len() - 2]).unwrap();
        let error = refused([&calibrate(text(&killed))[..], &["--seed", "1"]].concat());
        assert_says(&error, &["its plan.seed is 0, here it is 1"]);
    }
    stdout([&calibrate(text(&killed))[..], &["--jobs", "1"]].concat());
    assert_eq!(read(&whole), read(&killed));
    assert!(!partial.exists());
}

/// MInference's search on a prompt where patterns differ, and a prompt under what it found.
#[test]
fn patterns_of_sparse_attention_are_searched_and_read() {
    let (_dir, [path]) = folder(["profile.json"]);
    let tiny = ["calibrate", "--samples", "1", "--lengths", "128", "--out", text(&path)];
    stdout([&tiny[..], &["--patterns", "1280"]].concat());
    let profile = Profile::from_file(&path).unwrap();
    assert!(profile.made.ends_with("on a prompt of 1280 tokens"), "{}", profile.made);
    let patterns = profile.patterns.unwrap().concat();
    assert_eq!(patterns.len(), profile.shape.layers * profile.shape.query_heads);
    assert!(patterns.iter().any(|pattern| *pattern != patterns[0]), "{patterns:?}");

    let sparse = ["needle", "--policies", "full:sparse_prefill=profile", "--lengths", "1280"];
    let rest = ["--depths", "50", "--samples", "2", "--profile", text(&path)];
    let report = json([&sparse[..], &rest].concat());
    let sparse = report["rows"].as_array().unwrap().iter();
    let mut sparse = sparse
        .filter(|row| row["policy"] == "full:sparse_prefill=profile" && row["ask"] == "before");
    assert_eq!(sparse.next().unwrap()["mean"]["count"], 2, "{report}");

    refused([&tiny[..], &["--patterns", "100000"]].concat());
}

#[test]
fn profiles_are_read_by_the_policies_and_the_masking_test() {
    let (dir, [profile, masked, compared]) = folder(["profile.json", "masked", "compared"]);
    stdout(["calibrate", "--prompts", "2", "--tokens", "128", "--out", text(&profile)]);

    let counts = ["--counts", "0,16", "--length", "160", "--depths", "0,100", "--samples", "2"];
    let files = ["--profile", text(&profile), "--out", text(&masked)];
    let mask_heads = [&["mask-heads"][..], &counts, &files].concat();
    let report = json(&mask_heads);
    let exact = |choice: &str, masked: u64| {
        let cells = report["cells"].as_array().unwrap();
        let mut found =
            cells.iter().filter(|cell| cell["choice"] == choice && cell["masked"] == masked);
        found.next().unwrap()["exact"]["rate"].as_f64().unwrap()
    };
    assert!(exact("random", 0) >= 0.75, "{report}");
    assert_eq!(exact("semantic", 0), exact("random", 0));
    assert_eq!(exact("semantic", 16), 0.0);
    assert_eq!(report["cells"][3]["choice"], "copy-paste");
    let csv = read(&masked.join("mask-heads.csv"));
    assert!(csv.lines().count() == 1 + 4 * 2 && csv.contains("\nsemantic,16,4,0.0,0.0,"), "{csv}");
    // No head is masked once for all, and an answer that is there is not asked for again.
    let journal = masked.join("mask-heads.jsonl");
    let kept = read(&journal);
    assert_eq!(kept.lines().count(), 1 + (1 + 4) * 4, "{kept}");
    let whole: Vec<&str> = kept.split_inclusive('\n').take(9).collect();
    fs::write(&journal, whole.concat() + "{\"step\":[").unwrap();
    assert_eq!(json(&mask_heads)["cells"], report["cells"]);
    assert!(read(&journal).starts_with(&whole.concat()));

    // The embedded model without the profile that lies beside it.
    let bare = dir.path().join("bare");
    copy_model(&bare, &WEIGHTS);
    let compare = |policies, more: &[&str]| -> Value {
        let sizes = ["--length", "160", "--depths", "50", "--samples", "1", "--windows", "1"];
        let axes = ["--tokens", "4", "--budgets", "16,48", "--policies", policies];
        let out = ["--out", text(&compared), "--model", text(&bare)];
        json([&["compare"][..], &sizes, &axes, &out, more].concat())
    };
    let rows = |report: &Value, policy: &str| -> Vec<Value> {
        let rows = report["rows"].as_array().unwrap().iter();
        rows.filter(|row| row["policy"] == policy).cloned().collect()
    };
    let reasons = |report: &Value| -> Vec<String> {
        let all = report["unavailable"].as_array().unwrap().iter();
        let name = |one: &Value| format!("{} {} {}", one["policy"], one["budget"], one["reason"]);
        all.map(|one| name(one).replace('"', "")).collect()
    };
    let without = compare("full,snapkv,headkv", &[]);
    let why = reasons(&without);
    assert_eq!(why.len(), 3, "{why:?}");
    assert!(why[0].starts_with("snapkv 16") && why[0].contains("32 recent"), "{why:?}");
    let lacks = |why: &String| why.starts_with("headkv") && why.contains("briquette calibrate");
    assert_eq!(why.iter().filter(|why| lacks(why)).count(), 1, "{why:?}");
    let measured = || {
        let journal = read(&compared.join("results.jsonl"));
        journal
            .lines()
            .filter(|line| line.contains("\"seconds\"") && !line.contains("unavailable"))
            .count()
    };
    // Two answers and a window, of the full cache and of SnapKV.
    assert_eq!(measured(), 2 * 3);

    // Other policies are added, and what is there is not measured again.
    let with = compare("full,snapkv,headkv", &["--profile", text(&profile)]);
    assert_eq!(rows(&with, "headkv").len(), 3, "{with}");
    assert!(reasons(&with).iter().all(|why| why.contains("32 recent")), "{with}");
    assert_eq!(rows(&with, "snapkv"), rows(&without, "snapkv"));
    assert_eq!(measured(), 3 * 3);
}

#[test]
fn perplexity_is_that_of_the_full_cache_where_the_budget_holds_all() {
    let sizes = ["--prompt", "96", "--tokens", "6", "--windows", "2", "--stride", "50"];
    let axes = ["--policies", "snapkv,local-window", "--budgets", "48,512"];
    let report = json([&["perplexity"][..], &sizes, &axes].concat());
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {}", row["policy"], row["budget"]).replace('"', ""))
        .collect();
    let expected = ["full -", "snapkv 48", "snapkv 512", "local-window 48", "local-window 512"];
    assert_eq!(names, expected);
    let over = |row: usize| rows[row]["over_full"]["mean"].as_f64().unwrap();
    assert_eq!([over(0), over(2), over(4)], [0.0; 3]);
    assert!(over(3) > 0.1, "{report}");
}
