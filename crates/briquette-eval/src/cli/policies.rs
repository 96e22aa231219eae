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
    let mut human = args.output.human();
    let Some(text) = &args.policy else {
        let methods = methods();
        writeln!(human, "{}", report::methods(&methods))?;
        return args.output.write_json(&methods);
    };
    let policy = policy::read(text, None, BUDGET)?.policy;
    write!(human, "{}", policy.to_toml()?)?;
    args.output.write_json(&serde_json::from_str::<serde_json::Value>(&policy.to_json()?)?)
}
