use std::{
    io::{self, Write},
    path::PathBuf,
};

use anyhow::{Context, Result};
use briquette_eval::files;
use briquette_report::html;

use crate::terminal::output::{ForceArgs, note, plain};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder of the run, with results.jsonl or its shards results-I-of-N.jsonl. Pictures,
    /// report.csv and tables.md go into DIR/report
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Where the page goes [default: DIR/report.html]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The title of the page [default: the models, the tasks and the day]
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    #[command(flatten)]
    force: ForceArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let inputs = files::results(&args.dir);
    args.force.gate(inputs).report(&args.dir, args.out.as_deref())?;
    let written = html::write(&args.dir, args.out.as_deref(), args.title.as_deref())?;
    for warning in &written.warnings {
        note(&format!("warning: {warning}"));
    }
    let said = format!(
        "{}: {} records; report.csv, tables.md and {} pictures in {}",
        written.page.display(),
        written.records,
        written.pictures.len(),
        args.dir.join("report").display()
    );
    writeln!(io::stdout(), "{}", plain(&said)).context("cannot write to stdout")
}
