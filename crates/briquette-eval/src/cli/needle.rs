use std::{path::PathBuf, time::Instant};

use anyhow::Result;
use briquette::Budget;

use super::{
    model::{Loaded, ModelArgs},
    output::OutputArgs,
    policy, progress,
};
use crate::{
    grid::{self, Axes, Entry},
    report::{NeedleReport, Settings},
    tasks::{haystack::Haystack, needle::NeedleTask},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Lengths of prompt and answer, in tokens
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "512,1024")]
    lengths: Vec<usize>,
    /// How many depths from 0 to 100 percent, or a list of them: 0,10,50
    #[arg(long, value_name = "N|N,…", value_parser = depths, default_value = "5")]
    depths: Depths,
    /// Methods of `briquette policies`, changed as in `snapkv:kernel=15`, or policy files (.toml, .json).
    /// The full cache is always measured beside them
    #[arg(
        long,
        visible_alias = "policy",
        value_name = "NAME|FILE,…",
        value_delimiter = ',',
        default_value = "streaming-llm,h2o,snapkv:kernel=15"
    )]
    policies: Vec<String>,
    /// Budgets of every policy: tokens (256), a share of the tokens seen (25%), or bytes (512KiB)
    /// [default: 128,256, and for a policy file its own]
    #[arg(long, visible_alias = "budget", value_name = "B,…", value_delimiter = ',')]
    budgets: Vec<Budget>,
    /// Numbers of needles in a prompt, of which one is asked for
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1")]
    needles: Vec<usize>,
    /// Prompts for each length, depth and number of needles
    #[arg(long, value_name = "N", default_value_t = 2)]
    samples: usize,
    /// Seed of the prompts
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Prompts to run at once; more is faster on a GPU
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// A folder of .txt files to hide needles in [default: built-in prose]
    #[arg(long, value_name = "DIR")]
    haystack: Option<PathBuf>,
    /// Write needle.json, needle.csv (cells), answers.csv, heat maps and an overview as SVG and PNG into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Budgets of a policy given by name when there is no `--budgets`.
const BUDGETS: [Budget; 2] = [Budget::Tokens(128), Budget::Tokens(256)];

pub(super) fn run(args: Args) -> Result<()> {
    let axes = Axes {
        lengths: args.lengths,
        depths: args.depths.0,
        needles: args.needles,
        samples: args.samples,
        seed: args.seed,
        entries: entries(&args.policies, &args.budgets)?,
    };
    axes.check()?;
    let haystack = match &args.haystack {
        Some(dir) => Haystack::from_dir(dir)?,
        None => Haystack::built_in(),
    };
    let Loaded { model, tokenizer, dir, device, dtype } = args.model.load()?;
    let task = NeedleTask::new(&tokenizer, &haystack, axes.seed)?;

    let runs = axes.entries.iter().map(|entry| if entry.keeps_all() { 1 } else { 2 });
    let bar = progress::bar(runs.sum::<usize>() * axes.prompts());
    let start = Instant::now();
    let answers =
        grid::run(&model, &tokenizer, &task, &axes, args.batch as usize, |entry, prompts| {
            bar.set_message(format!("{} {}", entry.label, entry.budget()));
            bar.inc(prompts as u64);
        });
    bar.finish_and_clear();
    let settings = Settings::new(
        dir.display().to_string(),
        model.cache_shape(),
        dtype,
        device,
        haystack.name().to_owned(),
        args.batch as usize,
        &axes,
    );
    let report = NeedleReport::new(settings, start.elapsed(), answers?);

    let mut human = args.output.human();
    writeln!(human, "{}", report.table())?;
    writeln!(
        human,
        "{} prompts a row, depths {:?} %, 95 % Wilson intervals, {:.0} s on {}",
        axes.depths.len() * axes.samples,
        axes.depths,
        report.seconds,
        report.settings.device
    )?;
    if let Some(out) = &args.out {
        let files = report.write(out)?;
        writeln!(human, "{} files in {}", files.len(), out.display())?;
    }
    args.output.write_json(&report)
}

/// Every policy at every budget, behind the full cache.
fn entries(policies: &[String], budgets: &[Budget]) -> Result<Vec<Entry>> {
    let mut entries = vec![Entry::full()];
    for text in policies {
        let at: Vec<Option<Budget>> = match budgets {
            [] if policy::is_file(text) => vec![None],
            [] => BUDGETS.map(Some).to_vec(),
            given => given.iter().copied().map(Some).collect(),
        };
        for budget in at {
            let entry = policy::read(text, budget, BUDGETS[0])?;
            if entry.keeps_all() {
                // No budget makes a difference, and the full cache is there already.
                if entry.label != "full" {
                    entries.push(entry);
                }
                break;
            }
            entries.push(entry);
        }
    }
    Ok(entries)
}

#[derive(Clone, Debug)]
struct Depths(Vec<u32>);

/// A single number counts depths, a list names them.
fn depths(text: &str) -> Result<Depths, String> {
    let number = |text: &str| {
        text.trim().parse::<u32>().map_err(|_| format!("`{text}` is not a whole number"))
    };
    if !text.contains(',') {
        return match number(text)? {
            1 => Ok(Depths(vec![50])),
            count @ 2..=101 => {
                Ok(Depths((0..count).map(|i| (100 * i + (count - 1) / 2) / (count - 1)).collect()))
            }
            count => Err(format!("{count} depths: between 1 and 101 can be told apart")),
        };
    }
    let list = text.split(',').filter(|part| !part.trim().is_empty());
    let depths = list.map(number).collect::<Result<Vec<_>, _>>()?;
    match depths.iter().find(|depth| **depth > 100) {
        Some(depth) => Err(format!("{depth} is above 100 percent")),
        None => Ok(Depths(depths)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_a_count_or_a_list() {
        let read = |text| depths(text).unwrap().0;
        assert_eq!(read("1"), [50]);
        assert_eq!(read("2"), [0, 100]);
        assert_eq!(read("4"), [0, 33, 67, 100]);
        assert_eq!(read("5"), [0, 25, 50, 75, 100]);
        assert_eq!(read("0,10, 90"), [0, 10, 90]);
        assert_eq!(read("30,"), [30]);
        assert_eq!(read("101").len(), 101);
        for text in ["0", "102", "x", "0,101", "-1"] {
            assert!(depths(text).is_err(), "{text}");
        }
    }

    #[test]
    fn full_cache_stands_first_and_once() {
        let policies = ["full", "h2o", "snapkv"].map(String::from);
        let names = |budgets: &[Budget]| -> Vec<String> {
            let entries = entries(&policies, budgets).unwrap();
            entries.iter().map(|entry| format!("{} {}", entry.label, entry.budget())).collect()
        };
        assert_eq!(names(&[]), ["full -", "h2o 128", "h2o 256", "snapkv 128", "snapkv 256"]);
        assert_eq!(names(&[Budget::Ratio(0.5)]), ["full -", "h2o 50%", "snapkv 50%"]);
    }
}
