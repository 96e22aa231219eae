//! Joins the lines of `bench-kernels`, `benches/torch/kernels.py` and `benches/cold-start.sh` into
//! a Markdown table.

use std::path::PathBuf;

use anyhow::Result;
use briquette_benches::{record::read_behind, table::Run};
use clap::Parser;

/// Joins the lines of `bench-kernels`, `benches/torch/kernels.py` and `benches/cold-start.sh` into
/// a Markdown table.
#[derive(Debug, Parser)]
struct Args {
    /// Files of lines of JSON, in any order; of several lines of one row and variant the last
    /// counts
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

fn main() -> Result<()> {
    let mut records = Vec::new();
    for file in Args::parse().files {
        read_behind(&mut records, &file)?;
    }
    print!("{}", Run::new(records).to_markdown());
    Ok(())
}
