use std::num::NonZeroUsize;

use briquette_eval::run::BatchLimit;

use crate::args::jobs::is_accelerator;

/// Tokens of the samples of a batch on an accelerator: enough to keep a large one busy.
const TOKENS: usize = 32_768;

/// Policies that share a prefill on a host.
const POLICIES: usize = 8;

/// How much of the work of a run is done together.
#[derive(Debug, clap::Args)]
pub(crate) struct BatchArgs {
    /// Prompts of one length to run as rows of a batch [default: as many as have 32,768 tokens
    /// together, on flex and cpu 1]
    #[arg(long, value_name = "N")]
    batch: Option<NonZeroUsize>,

    /// Policies at most that share the prefill of a batch: each holds its cache until it has
    /// answered; 1 shares none, and times the prefill of each [default: on flex and cpu 8, else 1]
    #[arg(long, value_name = "N")]
    share_prefill: Option<NonZeroUsize>,
}

impl BatchArgs {
    pub(crate) fn limit(&self, device: &str) -> BatchLimit {
        match self.batch {
            Some(rows) => BatchLimit::Rows(rows.get()),
            None if is_accelerator(device) => BatchLimit::Tokens(TOKENS),
            None => BatchLimit::Rows(1),
        }
    }

    /// On an accelerator launches look for memory among the buffers of all caches, which takes as
    /// long as a shared prefill saves.
    pub(crate) fn policies(&self, device: &str) -> usize {
        let default = if is_accelerator(device) { 1 } else { POLICIES };
        self.share_prefill.map_or(default, NonZeroUsize::get)
    }
}
