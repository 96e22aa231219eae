use std::path::PathBuf;

use briquette::Budget;

use crate::args::{
    defaults, model::ModelArgs, policy_text::PolicyText, profile::ProfileArgs,
    sampling::SamplingArgs, template::TemplateArgs,
};

/// The budget where none is named.
pub(crate) const BUDGET: Budget = Budget::Tokens(512);

const KEYS: &str = "On a terminal a line is edited as in a shell: a paste may have any length and several lines, and \
     arrows bring earlier lines back. What is typed or pasted while an answer is written stands in the next line, and \
     Enter sends it. Elsewhere each line of stdin is a turn of the user. /help lists commands. Ctrl-C ends an answer; \
     between answers the second one ends the program, and without a terminal the first. So does the end of stdin.";

const EXAMPLES: &str = "\
Examples:
  briquette chat --model models/smollm2-135m-instruct
  briquette chat --model MODEL --policy kvzip --budget 25% --system \"Answer in one sentence.\"";

#[derive(Debug, clap::Args)]
#[command(after_help = KEYS, after_long_help = format!("{KEYS}\n\n{EXAMPLES}"))]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) profile: ProfileArgs,
    /// Method of `briquette policies`, or policy file
    ///
    /// Parameters are changed as in `snapkv:kernel=15`. Files are TOML or JSON. The default
    /// is query-agnostic: later questions find what it kept.
    #[arg(
        long,
        value_name = "NAME|FILE",
        default_value = defaults::LATER,
        value_parser = PolicyText,
        hide_possible_values = true,
        help_heading = "Compression"
    )]
    pub(crate) policy: String,
    /// Budget of the cache: 256, 25%, 512KiB [default: 512, or that of the policy file]
    ///
    /// Tokens, a share of the tokens seen, or bytes.
    #[arg(long, help_heading = "Compression")]
    pub(crate) budget: Option<Budget>,
    /// File of /save, or of `briquette compress --chat`, to go on from
    ///
    /// Its policy and budget go on too.
    #[arg(
        long,
        help_heading = "Compression",
        value_name = "FILE",
        visible_alias = "prefix",
        conflicts_with_all = ["policy", "budget", "system"]
    )]
    pub(crate) resume: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) template: TemplateArgs,
    /// Tokens per answer at most
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = "Sampling")]
    pub(crate) max_new_tokens: usize,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}
