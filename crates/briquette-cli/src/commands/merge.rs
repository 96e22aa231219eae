use std::{fmt::Write, path::PathBuf};

use anyhow::{Result, bail};
use briquette_eval::run::{Merged, Missing, merge};

use crate::{args::resume::ResumeArgs, terminal::output::OutputArgs};

const EXAMPLES: &str = "\
Examples:
  briquette merge out/run
  briquette merge a/results.jsonl b/results.jsonl --out out/both";

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folder of a run whose shards are joined, or files of results
    #[arg(value_name = "DIR|FILE", required = true)]
    paths: Vec<PathBuf>,
    /// Folder for results.jsonl [default: the folder, if one is given]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Exit with 0 although units of the plan are missing
    #[arg(long)]
    partial: bool,
    /// Accept results of other weights, tokenizers or configurations
    #[arg(long)]
    other_weights: bool,
    #[command(flatten)]
    resume: ResumeArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    args.output.gate(args.paths.clone())?;
    let out = match (&args.out, args.paths.as_slice()) {
        (Some(out), _) => out.clone(),
        (None, [dir]) if dir.is_dir() => dir.clone(),
        _ => bail!("say with --out DIR where results.jsonl is to be written"),
    };
    let merged = merge(&args.paths, &out, args.resume.accept(args.other_weights))?;
    let mut human = String::new();
    let Merged { file, from, records, duplicates, damaged, missing } = &merged;
    writeln!(
        human,
        "{}: {records} results of {} files, {duplicates} were there twice",
        file.display(),
        from.len()
    )?;
    for line in damaged {
        writeln!(human, "left out as damaged: {line}")?;
    }
    match missing {
        None => writeln!(human, "no plan.jsonl beside them: what is missing cannot be said")?,
        Some(missing) if missing.is_empty() => writeln!(human, "nothing is missing")?,
        Some(missing) => {
            writeln!(human, "{} units are missing:", count(missing))?;
            for Missing { model, task, policy, budget, units } in missing {
                writeln!(human, "  {units} of {model}, {task}, {policy} at {budget}")?;
            }
        }
    }
    args.output.write(&human, &merged)?;
    match count(missing.as_deref().unwrap_or_default()) {
        missing if missing > 0 && !args.partial => bail!(
            "{missing} units of the plan are missing; the others are in {}. With --partial that is no failure",
            file.display()
        ),
        _ => Ok(()),
    }
}

fn count(missing: &[Missing]) -> usize {
    missing.iter().map(|one| one.units).sum()
}
