use std::num::NonZeroUsize;

use super::jobs::is_accelerator;
use crate::run::BatchLimit;

/// Tokens of the samples of a batch on an accelerator: enough to keep a large one busy.
const TOKENS: usize = 32_768;

/// How many samples are rows of a batch.
#[derive(Debug, clap::Args)]
pub(super) struct BatchArgs {
    /// Prompts of one length to run as rows of a batch [default: as many as have 32,768 tokens
    /// together, on flex and cpu 1]
    #[arg(long, value_name = "N")]
    batch: Option<NonZeroUsize>,
}

impl BatchArgs {
    pub(super) fn limit(&self, device: &str) -> BatchLimit {
        match self.batch {
            Some(rows) => BatchLimit::Rows(rows.get()),
            None if is_accelerator(device) => BatchLimit::Tokens(TOKENS),
            None => BatchLimit::Rows(1),
        }
    }
}
