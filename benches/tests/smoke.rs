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

#[test]
fn every_method_generates() {
    let args =
        "--device flex --dtype f32 --quick --settings 2:96+8 --budgets 48 --split --bandwidth 1";
    let lines =
        run(env!("CARGO_BIN_EXE_bench-generate"), &args.split_whitespace().collect::<Vec<_>>());
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Five methods, a report and a split each.
    assert_eq!(lines.len(), 10);
    for line in lines {
        assert!(line["error"].is_null(), "{line}");
        assert!(line["step_ms"].as_f64().unwrap() > 0.0, "{line}");
    }
}

#[test]
fn filled_caches_hold_what_a_prompt_leaves() {
    let run = |more: &str| -> Vec<Value> {
        let args = format!(
            "--device flex --dtype f32 --quick --settings 2:192+8 --budgets 48 --methods full,h2o,d2o {more}"
        );
        let lines =
            run(env!("CARGO_BIN_EXE_bench-generate"), &args.split_whitespace().collect::<Vec<_>>());
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (prefilled, filled) = (run(""), run("--fill --decode-every 1"));
    assert_eq!(filled.len(), 3);
    for (prefilled, filled) in prefilled.iter().zip(filled) {
        assert!(filled["error"].is_null(), "{filled}");
        assert_eq!(filled["filled"], true, "{filled}");
        assert_eq!(filled["bytes_full"], prefilled["bytes_full"], "{filled}");
        // Budgets of D2O's layers follow what they are given, within the same sum.
        let held = |line: &Value| line["bytes_held"].as_f64().unwrap();
        let ratio = held(&filled) / held(prefilled);
        assert!((0.95..1.05).contains(&ratio), "{filled} {prefilled}");
    }
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

#[test]
fn the_papers_tables_run() {
    let args = "--device flex --dtype f32 --tiny --steps 2 --tables ems,engines,decode-only";
    let text =
        run(env!("CARGO_BIN_EXE_bench-papers"), &args.split_whitespace().collect::<Vec<_>>());
    let (lines, tables) = text.split_once("\n\n").unwrap();
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["error"].is_null(), "{line}");
        assert!(line["tokens_per_s"].as_f64().unwrap() > 0.0, "{line}");
        assert!(line["method"] == "full" || line["ratio"].is_number(), "{line}");
    }
    for method in ["full", "ems", "snapkv", "compresskv", "triattention"] {
        assert!(tables.contains(&format!("| {method} |")), "{tables}");
    }
}
