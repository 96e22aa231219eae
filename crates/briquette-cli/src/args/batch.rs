use std::num::NonZeroUsize;

use briquette_eval::run::BatchLimit;

use crate::args::jobs::is_accelerator;

/// Tokens of the samples of a batch on an accelerator: enough to keep a large one busy.
const TOKENS: usize = 32_768;

/// How many samples are rows of a batch.
#[derive(Debug, clap::Args)]
pub(crate) struct BatchArgs {
    /// Prompts of one length to run as rows of a batch [default: as many as have 32,768 tokens
    /// together, on flex and cpu 1]
    #[arg(long, value_name = "N")]
    batch: Option<NonZeroUsize>,
}

impl BatchArgs {
    pub(crate) fn limit(&self, device: &str) -> BatchLimit {
        match self.batch {
            Some(rows) => BatchLimit::Rows(rows.get()),
            None if is_accelerator(device) => BatchLimit::Tokens(TOKENS),
            None => BatchLimit::Rows(1),
        }
    }
}
