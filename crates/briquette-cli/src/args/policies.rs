use briquette::Budget;

use super::{defaults, policy_text::PolicyText};

/// Policies that are measured, and their budgets.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Compression")]
pub(crate) struct PolicyArgs {
    /// Methods of `briquette policies`, or policy files
    ///
    /// Parameters are changed as in `snapkv:kernel=15`. Files are TOML or JSON. The full cache is
    /// always measured beside them.
    #[arg(
        long,
        visible_alias = "policy",
        value_name = "NAME|FILE,…",
        value_delimiter = ',',
        default_value = defaults::POLICIES,
        value_parser = PolicyText,
        hide_possible_values = true
    )]
    pub(crate) policies: Vec<String>,
    /// Budgets of every policy that takes one: 256, 25%, 512KiB [default: 128,256]
    ///
    /// Tokens, shares of the tokens seen, or bytes. A policy file has its own.
    #[arg(long, visible_alias = "budget", value_name = "B,…", value_delimiter = ',')]
    pub(crate) budgets: Vec<Budget>,
}
