//! Turns the lines of `bench-generate` and `benches/torch/generate.py` into a Markdown table.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::Value;

/// Turns the lines of `bench-generate` and `benches/torch/generate.py` into a Markdown table.
#[derive(Debug, Parser)]
struct Args {
    /// Files of lines of JSON
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

fn main() -> Result<()> {
    let mut lines = Vec::new();
    for file in Args::parse().files {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            lines.push(serde_json::from_str(line).with_context(|| file.display().to_string())?);
        }
    }
    println!(
        "| method | budget | batch × prompt + new | prefill, s | decode step, ms | decoded tokens/s | to the full cache | cache held |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    // A file can be appended to: the last line of a row counts.
    let mut rows: Vec<(String, &Value)> = Vec::new();
    for line in of_kind(&lines, "generate") {
        let row = row(line);
        match rows.iter_mut().find(|(known, _)| *known == row) {
            Some((_, last)) => *last = line,
            None => rows.push((row, line)),
        }
    }
    for (row, line) in rows {
        println!("{row} {}", generation(line));
    }
    if of_kind(&lines, "generate").any(|line| line["replayed_step_ms"].is_number()) {
        println!(
            "\n| method | budget | batch × prompt + new | launched step, ms | replayed step, ms | of it the host | decoded tokens/s |"
        );
        println!("|---|---|---|---|---|---|---|");
        for line in of_kind(&lines, "generate") {
            let rate = match (line["batch"].as_f64(), line["replayed_step_ms"].as_f64()) {
                (Some(batch), Some(step)) => format!("{:.1}", batch / step * 1e3),
                _ => "-".to_owned(),
            };
            println!(
                "{} {} | {} | {} | {rate} |",
                row(line),
                number(line, "step_ms", 1),
                number(line, "replayed_step_ms", 1),
                number(line, "replayed_host_ms", 1),
            );
        }
    }
    println!("\n| method | batch | step, ms | products with weights | cache | the rest |");
    println!("|---|---|---|---|---|---|");
    for line in of_kind(&lines, "split") {
        let ms = |key| number(line, key, 1);
        println!(
            "| {} | {} | {} | {} | {} | {} |",
            text(line, "method"),
            text(line, "batch"),
            ms("step_ms"),
            ms("matmul_ms"),
            ms("attend_ms"),
            ms("rest_ms")
        );
    }
    Ok(())
}

fn of_kind<'a>(lines: &'a [Value], kind: &'static str) -> impl Iterator<Item = &'a Value> {
    lines.iter().filter(move |line| line["kind"] == kind)
}

/// The cells that name the run.
fn row(line: &Value) -> String {
    let mut method = match line["side"].as_str() {
        Some(side) => format!("{} ({side})", text(line, "method")),
        None => text(line, "method"),
    };
    if let Some(every) = line["decode_every"].as_u64().filter(|&every| every > 1) {
        method = format!("{method}, every {every} tokens");
    }
    let budget = match text(line, "method").as_str() {
        "full" => "-".to_owned(),
        _ => text(line, "budget"),
    };
    let [batch, prompt, new] = ["batch", "prompt", "new"].map(|key| text(line, key));
    let largest = if is(line, "largest", true) { ", the largest" } else { "" };
    let filled = if is(line, "filled", true) { ", filled" } else { "" };
    format!("| {method} | {budget} | {batch} × {prompt} + {new}{filled}{largest} |")
}

/// The cells with its results.
fn generation(line: &Value) -> String {
    if let Some(error) = line["error"].as_str() {
        return format!("{error} | | | | |");
    }
    let share = match (line["bytes_held"].as_f64(), line["bytes_full"].as_f64()) {
        (Some(held), Some(full)) => {
            format!("{:.2} GiB ({:.0} %)", held / 2_f64.powi(30), 100.0 * held / full)
        }
        _ => "-".to_owned(),
    };
    let prefill = match number(line, "prefill_s", 2) {
        _ if is(line, "filled", true) => "-".to_owned(),
        // The first prefill of a process compiles and tunes.
        first if is(line, "prefill_warm", false) => format!("{first}, the first"),
        prefill => prefill,
    };
    format!(
        "{prefill} | {} | {} | {} | {share} |",
        number(line, "step_ms", 1),
        number(line, "decode_tokens_per_s", 1),
        number(line, "decode_ratio", 2),
    )
}

fn is(line: &Value, key: &str, value: bool) -> bool {
    line[key] == Value::Bool(value)
}

fn number(line: &Value, key: &str, digits: usize) -> String {
    line[key].as_f64().map_or_else(|| "-".to_owned(), |number| format!("{number:.digits$}"))
}

fn text(line: &Value, key: &str) -> String {
    match &line[key] {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
