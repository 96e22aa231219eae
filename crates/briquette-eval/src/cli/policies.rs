use anyhow::Result;
use briquette::{Budget, methods};

use super::{output::OutputArgs, policy};
use crate::report;

/// The budget in a printed file, to be edited.
const BUDGET: Budget = Budget::Tokens(256);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print the file of this method, ready to edit: NAME, NAME:key=value or FILE
    #[arg(value_name = "POLICY")]
    policy: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: Args) -> Result<()> {
    args.output.check()?;
    let Some(text) = &args.policy else {
        let methods = methods();
        let narrow = "method, protect, schedule and positions are shown with --wide\n";
        let left = if report::methods_are_cut() { narrow } else { "" };
        return args.output.write(&format!("{}\n{left}", report::methods(&methods)), &methods);
    };
    let policy = policy::read(text, None, BUDGET)?.policy;
    let json: serde_json::Value = serde_json::from_str(&policy.to_json()?)?;
    args.output.write(&policy.to_toml()?, &json)
}
