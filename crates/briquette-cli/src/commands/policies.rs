use anyhow::Result;
use briquette::{Budget, methods};
use briquette_eval::policy;
use briquette_report::methods as methods_table;
use serde::Serialize;

use crate::{
    args::policy_text::PolicyText,
    terminal::{
        output::{Shown, TableArgs},
        output_gate::Mark,
    },
};

/// The budget in a printed file, to be edited.
const BUDGET: Budget = Budget::Tokens(256);

const EXAMPLES: &str = "\
Examples:
  briquette policies
  briquette policies snapkv:kernel=15 > mine.toml";

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the policy file of this method, ready to edit
    ///
    /// NAME, NAME:key=value or FILE.
    #[arg(value_name = "POLICY", value_parser = PolicyText, hide_possible_values = true)]
    policy: Option<String>,
    #[command(flatten)]
    tables: TableArgs,
}

/// The JSON of all methods.
#[derive(Serialize)]
struct Listed<T> {
    methods: T,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let mark = if args.policy.is_some() { Mark::Never } else { Mark::Json };
    args.tables.output.gate_as(mark, policy::inputs(&args.policy))?;
    let Some(text) = &args.policy else {
        let methods = methods();
        let shown = Shown {
            tables: vec![methods_table(&methods)],
            behind: "briquette policies NAME prints the settings of one\n".into(),
            ..Shown::default()
        };
        return args.tables.write(&shown, &Listed { methods });
    };
    let written = policy::parse(text)?;
    let policy = match policy::is_file(policy::split(text).0) {
        true => written.policy().clone(),
        false => written.or_at(BUDGET)?,
    };
    let json: serde_json::Value = serde_json::from_str(&policy.to_json()?)?;
    let described = methods().into_iter().find(|method| method.name == policy.name());
    let comment = described.map_or_else(String::new, |method| {
        format!("# {} ({}): {}\n", method.title, method.paper, method.keeps)
    });
    args.tables.output.write_plain(&(comment + &policy.to_toml()?), &json)
}
