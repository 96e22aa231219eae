use std::path::PathBuf;

use anyhow::Result;
use briquette::Budget;
use serde_json::json;

use crate::{
    args::{defaults, text::TextArgs},
    measure::one_task::{CommonArgs, OneTask, text_task},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Methods of `briquette policies`, changed as in `snapkv:kernel=15`, or policy files (.toml,
    /// .json). The full cache is always measured beside them
    #[arg(
        long,
        visible_alias = "policy",
        value_name = "NAME|FILE,…",
        value_delimiter = ',',
        default_value = defaults::POLICIES
    )]
    policies: Vec<String>,
    /// Budgets of every policy: tokens (256), a share of the tokens seen (25%), or bytes (512KiB)
    /// [default: 128,256, and for a policy file its own]
    #[arg(long, visible_alias = "budget", value_name = "B,…", value_delimiter = ',')]
    budgets: Vec<Budget>,
    /// Tokens of a prompt, which is compressed
    #[arg(long, alias = "prompt", value_name = "N", default_value_t = 1024)]
    length: usize,
    /// Tokens predicted behind a prompt
    #[arg(long, value_name = "N", default_value_t = 128)]
    tokens: usize,
    /// Prompts, from different places of the text
    #[arg(long, alias = "windows", value_name = "N", default_value_t = 4)]
    samples: usize,
    /// Tokens from one prompt's start to the next [default: so many that they span the text]
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
    /// Write into this folder what `briquette run` writes: results.jsonl, where the same command
    /// goes on, report.html with tables and pictures, and the run file
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let text = text_task(&args.text, args.length, args.tokens, args.samples, args.stride)?;
    let one = OneTask {
        command: "perplexity",
        common: &args.common,
        chat: false,
        policies: &args.policies,
        budgets: &args.budgets,
        change: &[],
        full: true,
        seed: 0,
        tasks: json!({ "perplexity": [text] }),
        out: args.out.as_deref(),
    };
    one.run()
}
