use std::path::PathBuf;

use anyhow::Result;
use briquette::Budget;
use briquette_eval::tasks::synthetic::Needle;
use serde_json::json;

use crate::{
    args::{
        depths::DepthArgs, haystack::HaystackArgs, policy_text::PolicyText, text::TextArgs,
        windows::WindowArgs,
    },
    measure::one_task::{CommonArgs, OneTask, text_task},
};

/// Budgets where none are named.
const BUDGETS: [Budget; 4] =
    [Budget::Tokens(64), Budget::Tokens(128), Budget::Tokens(256), Budget::Tokens(512)];

const EXAMPLES: &str = "\
Examples:
  briquette compare --out out/all
  briquette compare --policies h2o,tova,snapkv --budgets 25% --out out/three";

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Methods of `briquette policies`, or policy files [default: all methods]
    ///
    /// Parameters are changed as in `snapkv:kernel=15`. Files are TOML or JSON.
    #[arg(
        long,
        visible_alias = "policy",
        value_name = "NAME|FILE,…",
        value_delimiter = ',',
        value_parser = PolicyText,
        hide_possible_values = true,
        help_heading = "Compression"
    )]
    policies: Vec<String>,
    /// Budgets of every policy that takes one: 256, 25%, 512KiB [default: 64,128,256,512]
    ///
    /// Tokens, shares of the tokens seen, or bytes. A policy file has its own.
    #[arg(
        long,
        visible_alias = "budget",
        value_name = "B,…",
        value_delimiter = ',',
        help_heading = "Compression"
    )]
    budgets: Vec<Budget>,
    /// Changes to every method that has the key, as in kernel=15
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', help_heading = "Compression")]
    change: Vec<String>,
    /// Tokens of a needle prompt and its answer, and of a prompt of text
    #[arg(long, value_name = "N", default_value_t = 1024)]
    length: usize,
    #[command(flatten)]
    depths: DepthArgs,
    /// Needle prompts for each depth
    #[arg(long, value_name = "N", default_value_t = 2)]
    samples: usize,
    #[command(flatten)]
    text: TextArgs,
    /// Tokens predicted behind a prompt of text
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: usize,
    /// Prompts of text, from different places
    #[arg(long, alias = "windows", value_name = "N", default_value_t = 4)]
    text_samples: usize,
    /// Seed of the needle prompts
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
    out: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let needle = args.haystack.task(Needle {
        lengths: vec![args.length],
        depths: args.depths.depths.clone(),
        samples: args.samples,
        ..Needle::default()
    })?;
    let windows = WindowArgs { length: args.length, samples: args.text_samples, stride: None };
    let text = text_task(&args.text, &windows, args.tokens)?;
    let one = OneTask {
        command: "compare",
        common: &args.common,
        chat: args.haystack.chat,
        policies: &args.policies,
        budgets: &args.budgets,
        default: &BUDGETS,
        change: &args.change,
        full: true,
        seed: args.seed,
        tasks: json!({ "needle": [needle], "perplexity": [text] }),
        out: Some(&args.out),
    };
    one.run()
}
