use anyhow::Result;
use briquette::{Budget, methods};
use serde::Serialize;

use super::{output::OutputArgs, output_gate::Mark, policy};
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

/// The JSON of all methods.
#[derive(Serialize)]
struct Listed<T> {
    methods: T,
}

pub(super) fn run(args: Args) -> Result<()> {
    let mark = if args.policy.is_some() { Mark::Never } else { Mark::Json };
    args.output.gate_as(mark, policy::inputs(&args.policy))?;
    let Some(text) = &args.policy else {
        let methods = methods();
        let narrow = "method, protect, schedule and positions are shown with --wide\n";
        let left = if report::methods_are_cut() { narrow } else { "" };
        let human = format!("{}\n{left}", report::methods(&methods));
        return args.output.write(&human, &Listed { methods });
    };
    let policy = policy::read(text, None, BUDGET)?.policy;
    let json: serde_json::Value = serde_json::from_str(&policy.to_json()?)?;
    args.output.write_plain(&policy.to_toml()?, &json)
}
