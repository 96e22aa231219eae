use std::path::PathBuf;

use anyhow::Result;
use briquette_eval::tasks::synthetic::Needle;
use serde_json::json;

use crate::{
    args::{depths::DepthArgs, haystack::HaystackArgs, policies::PolicyArgs},
    measure::one_task::{CommonArgs, OneTask},
};

const EXAMPLES: &str = "\
Examples:
  briquette needle
  briquette needle --policies snapkv,kvzip --budgets 25%,12.5% --lengths 2048 --out out/needle";

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Lengths of prompt and answer, in tokens
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "512,1024")]
    lengths: Vec<usize>,
    #[command(flatten)]
    depths: DepthArgs,
    #[command(flatten)]
    policies: PolicyArgs,
    /// Numbers of needles in a prompt, of which one is asked for
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1")]
    needles: Vec<usize>,
    /// Prompts for each length, depth and number of needles
    #[arg(long, value_name = "N", default_value_t = 2)]
    samples: usize,
    /// Seed of the prompts
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    #[command(flatten)]
    haystack: HaystackArgs,
    /// Folder for results, page and run file
    ///
    /// As `briquette run` writes them: results.jsonl, where the same command goes on, report.html,
    /// and run.toml.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let needle = |keys: &usize| {
        args.haystack.task(Needle {
            lengths: args.lengths.clone(),
            depths: args.depths.depths.clone(),
            samples: args.samples,
            keys: *keys,
            ..Needle::default()
        })
    };
    let tasks = args.needles.iter().map(needle).collect::<Result<Vec<Needle>>>()?;
    let (tasks, out) = (json!({ "needle": tasks }), args.out.as_deref());
    let one = OneTask::new("needle", &args.common, &args.policies, tasks, out);
    OneTask { chat: args.haystack.chat, seed: args.seed, ..one }.run()
}
