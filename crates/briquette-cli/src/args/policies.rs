use briquette::Budget;

use super::defaults;

/// Policies that are measured, and their budgets.
#[derive(Debug, clap::Args)]
pub(crate) struct PolicyArgs {
    /// Methods of `briquette policies`, changed as in `snapkv:kernel=15`, or policy files (.toml,
    /// .json). The full cache is always measured beside them
    #[arg(
        long,
        visible_alias = "policy",
        value_name = "NAME|FILE,…",
        value_delimiter = ',',
        default_value = defaults::POLICIES
    )]
    pub(crate) policies: Vec<String>,
    /// Budgets of every policy that takes one: tokens (256), a share of the tokens seen (25%), or
    /// bytes (512KiB) [default: 128,256, and for a policy file its own]
    #[arg(long, visible_alias = "budget", value_name = "B,…", value_delimiter = ',')]
    pub(crate) budgets: Vec<Budget>,
}
