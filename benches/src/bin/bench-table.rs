//! Turns the lines of the programs into Markdown tables: those of `bench-kernels`,
//! `benches/torch/kernels.py` and `benches/cold-start.sh` joined into one, and those of
//! `bench-generate` and `benches/torch/generate.py`.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use briquette_benches::{
    record::read_behind,
    table::{Run, generation},
};
use clap::Parser;
use serde_json::Value;

/// Turns the lines of the programs into Markdown tables: those of `bench-kernels`,
/// `benches/torch/kernels.py` and `benches/cold-start.sh` joined into one, and those of
/// `bench-generate` and `benches/torch/generate.py`.
#[derive(Debug, Parser)]
struct Args {
    /// Files of lines of JSON, in any order; of several lines of one row and variant, or of one
    /// run, the last counts
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

fn main() -> Result<()> {
    let mut records = Vec::new();
    let mut lines: Vec<Value> = Vec::new();
    for file in Args::parse().files {
        read_behind(&mut records, &file)?;
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        lines.extend(text.lines().filter_map(|line| serde_json::from_str(line).ok()));
    }
    if !records.is_empty() {
        print!("{}", Run::new(records).to_markdown());
    }
    print!("{}", generation(&lines));
    Ok(())
}
