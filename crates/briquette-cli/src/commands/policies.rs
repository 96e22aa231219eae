use anyhow::Result;
use briquette::{Budget, methods};
use briquette_eval::policy;
use briquette_report::{methods as methods_table, methods_are_cut};
use serde::Serialize;

use crate::terminal::{
    output::{OutputArgs, table_width},
    output_gate::Mark,
};

/// The budget in a printed file, to be edited.
const BUDGET: Budget = Budget::Tokens(256);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
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

pub(crate) fn run(args: Args) -> Result<()> {
    let mark = if args.policy.is_some() { Mark::Never } else { Mark::Json };
    args.output.gate_as(mark, policy::inputs(&args.policy))?;
    let Some(text) = &args.policy else {
        let methods = methods();
        let narrow = "method, protect, schedule and positions are shown with --wide\n";
        let width = table_width();
        let left = if methods_are_cut(width) { narrow } else { "" };
        let human = format!("{}\n{left}", methods_table(&methods, width));
        return args.output.write(&human, &Listed { methods });
    };
    let written = policy::parse(text)?;
    let policy = match policy::is_file(policy::split(text).0) {
        true => written.policy().clone(),
        false => written.or_at(BUDGET)?.policy,
    };
    let json: serde_json::Value = serde_json::from_str(&policy.to_json()?)?;
    args.output.write_plain(&policy.to_toml()?, &json)
}
