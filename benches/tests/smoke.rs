//! Every program runs, on small sizes and the CPU. What they measure there means nothing.

#![cfg(feature = "flex")]

use std::process::Command;

use briquette_benches::record::read;
use serde_json::Value;

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_row_is_timed_and_right_and_stands_in_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kernels.jsonl");
    let path = file.to_str().unwrap();
    run(
        env!("CARGO_BIN_EXE_bench-kernels"),
        &["--device", "flex", "--dtype", "f32", "--quick", "--out", path],
    );
    let records = read(&file).unwrap();
    assert!(records.len() > 40, "{} records", records.len());
    for record in &records {
        // Flex has no kernels.
        let rows = ["ragged-decode", "shared-decode", "quantized-decode"];
        if rows.iter().any(|row| record.row.starts_with(row)) {
            continue;
        }
        assert!(record.error.is_none(), "{record:?}");
        assert!(record.ms.is_some(), "{record:?}");
        if let Some((off, of)) = record.difference {
            let indices = record.row.starts_with("select") || record.row.starts_with("group");
            let most = if indices { 0.0 } else { 1e-4 * of.max(1.0) };
            assert!(off <= most, "{record:?}");
        }
    }
    let table = run(env!("CARGO_BIN_EXE_bench-table"), &[path]);
    for record in records {
        assert!(
            table.contains(&format!("| {} |", record.row)),
            "{} is not in the table",
            record.row
        );
    }
}

fn generated(args: &str) -> Vec<Value> {
    let args = format!("--device flex --dtype f32 --shape tiny {args}");
    let args: Vec<&str> = args.split_whitespace().collect();
    let lines = run(env!("CARGO_BIN_EXE_bench-generate"), &args);
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_method_generates() {
    let lines = generated("--at 2:96+8 --budgets 48");
    assert_eq!(lines.len(), 5);
    for line in lines {
        assert!(line["error"].is_null(), "{line}");
        assert!(line["step_ms"].as_f64().unwrap() > 0.0, "{line}");
    }
}

#[test]
fn filled_caches_hold_what_a_prompt_leaves() {
    let of =
        |more: &str| generated(&format!("--at 2:192+8 --budgets 48 --methods full,h2o,d2o {more}"));
    let (prefilled, filled) = (of(""), of("--fill --decode-every 1"));
    assert_eq!(filled.len(), 3);
    for (prefilled, filled) in prefilled.iter().zip(filled) {
        assert!(filled["error"].is_null(), "{filled}");
        assert_eq!(filled["filled"], true, "{filled}");
        // Budgets of D2O's layers follow what they are given, within the same sum.
        let held = |line: &Value| line["bytes_held"].as_f64().unwrap();
        let ratio = held(&filled) / held(prefilled);
        assert!((0.95..1.05).contains(&ratio), "{filled} {prefilled}");
    }
}

#[test]
fn the_files_of_settings_run() {
    let file = |name: &str| format!("{}/settings/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let small = "--at 2:96+32 --budgets 64 --decode-every 16";
    let papers = file("papers");
    let lines = generated(&format!("--settings {papers} {small} --context 4096 --points 2"));
    for line in &lines {
        assert!(line["error"].is_null(), "{line}");
        assert_eq!(line["points"].as_array().unwrap().len(), 3, "{line}");
        assert!(line["ratio"].as_f64().unwrap() > 0.0, "{line}");
    }
    for method in ["full", "fp8", "ems", "d2o", "snapkv", "compresskv", "triattention"] {
        assert!(lines.iter().any(|line| line["method"] == method), "{method}");
    }
    // Of one round, since times of several differ by chance.
    let aging = file("aging");
    let lines = generated(&format!("--settings {aging} {small} --rounds 1 --methods full,h2o"));
    assert_eq!(lines.len(), 2);
    let lines = generated(&format!("--settings {} {small}", file("round-trips")));
    assert!(lines.len() > 20, "{} methods", lines.len());
    assert_eq!(lines[0]["settings"], "round-trips");
    assert!(lines[0]["points"][0]["host_ms"].as_f64().unwrap() > 0.0, "{}", lines[0]);
}

#[test]
fn a_long_run_stays_flat_and_its_sums_are_right() {
    let table = run(env!("CARGO_BIN_EXE_bench-long-run"), &["--tokens", "300"]);
    // Those with shared and merged entries, of a profile, of statistics of queries, and of whole
    // pages among them.
    for method in ["snapkv", "h2o", "streaming-llm", "d2o", "ems", "compresskv", "q-filter"] {
        assert!(table.contains(&format!("| {method} |")), "{table}");
    }
    let off = table.lines().last().and_then(|line| line.split(" at most ").nth(1)).unwrap();
    let off: f64 = off.split(' ').next().unwrap().parse().unwrap();
    assert!(off < 1e-5, "{table}");
}
