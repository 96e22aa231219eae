use std::{
    io::{self, Write},
    path::PathBuf,
};

use anyhow::{Context, Result};
use briquette_eval::files;
use briquette_report::html::{self, TableFormat};
use clap::ValueEnum;

use crate::terminal::output::{ForceArgs, note_each, plain};

const EXAMPLES: &str = "\
Examples:
  briquette report out/run
  briquette report out/run --title \"Needles on a phone\"";

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folder of the run, with results.jsonl or its shards
    ///
    /// Pictures, report.csv, differences.csv and tables.md go into DIR/report.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// File of the page [default: DIR/report.html]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Title of the page [default: the models, the tasks and the day]
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Language of the tables for a text, in DIR/report
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    tables: Tables,
    #[command(flatten)]
    force: ForceArgs,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Tables {
    /// tables.md
    #[default]
    Markdown,
    /// tables.tex beside it
    Latex,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let inputs = files::results(&args.dir);
    args.force.gate(inputs).report(&args.dir, args.out.as_deref())?;
    let format = match args.tables {
        Tables::Markdown => TableFormat::Markdown,
        Tables::Latex => TableFormat::Latex,
    };
    let (page, title) = (args.out.as_deref(), args.title.as_deref());
    let written = html::write_as(format, &args.dir, page, title)?;
    note_each("warning", &written.warnings);
    let named = [&written.csv, &written.differences].into_iter().chain(&written.tables);
    let named: Vec<String> = named.map(|path| files::last(path)).collect();
    let said = format!(
        "{}: {} records; {} and {} pictures in {}",
        written.page.display(),
        written.records,
        named.join(", "),
        written.pictures.len(),
        args.dir.join("report").display()
    );
    writeln!(io::stdout(), "{}", plain(&said)).context("cannot write to stdout")
}
