use std::path::PathBuf;

use briquette::Budget;

use crate::args::{
    defaults, model::ModelArgs, profile::ProfileArgs, sampling::SamplingArgs,
    template::TemplateArgs,
};

/// The budget where none is named.
pub(crate) const BUDGET: Budget = Budget::Tokens(512);

const KEYS: &str = "On a terminal a line is edited as in a shell: a paste may have any length and several lines, and \
     arrows bring earlier lines back. What is typed or pasted while an answer is written stands in the next line, and \
     Enter sends it. Elsewhere each line of stdin is a turn of the user. /help lists commands. Ctrl-C ends an answer; \
     between answers the second one ends the program, and without a terminal the first. So does the end of stdin.";

#[derive(Debug, clap::Args)]
#[command(after_help = KEYS)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) profile: ProfileArgs,
    /// Compression: a method of `briquette policies`, changed as in `snapkv:kernel=15`, or a policy
    /// file (.toml, .json). The default does not look at the question of a turn, so later ones find
    /// what it kept
    #[arg(long, value_name = "NAME|FILE", default_value = defaults::LATER)]
    pub(crate) policy: String,
    /// Budget of the cache: tokens (256), a share of the tokens seen (25%), or bytes (512KiB)
    /// [default: 512, or that of the policy file]
    #[arg(long)]
    pub(crate) budget: Option<Budget>,
    /// Go on with a conversation that /save wrote, or with the message that `briquette compress
    /// --chat` began, under the policy and budget of the file
    #[arg(
        long,
        value_name = "FILE",
        visible_alias = "prefix",
        conflicts_with_all = ["policy", "budget", "system"]
    )]
    pub(crate) resume: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) template: TemplateArgs,
    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) max_new_tokens: usize,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}
