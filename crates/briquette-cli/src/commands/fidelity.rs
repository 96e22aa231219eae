use std::path::PathBuf;

use anyhow::Result;
use serde_json::json;

use crate::{
    args::{policies::PolicyArgs, text::TextArgs, windows::WindowArgs},
    measure::one_task::{CommonArgs, OneTask, text_task},
};

const EXAMPLES: &str = "\
Examples:
  briquette fidelity
  briquette fidelity --text book.txt --policies snapkv,leverage --budgets 25%";

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    policies: PolicyArgs,
    #[command(flatten)]
    windows: WindowArgs,
    /// Tokens fed behind a prompt, one at a time
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: usize,
    /// Folder for results, page and run file
    ///
    /// As `briquette run` writes them: results.jsonl, where the same command goes on, report.html,
    /// and run.toml.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let text = text_task(&args.text, &args.windows, args.tokens)?;
    let (tasks, out) = (json!({ "fidelity": [text] }), args.out.as_deref());
    let one = OneTask::new("fidelity", &args.common, &args.policies, tasks, out);
    OneTask { full: false, ..one }.run()
}
