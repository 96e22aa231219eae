use std::num::NonZeroUsize;

use briquette_eval::run::BatchLimit;
use briquette_models::DeviceMap;

use crate::args::jobs::is_accelerator;

/// Part of an accelerator's memory that the full caches of a batch may take: a prompt's
/// activations, and what methods compute beside it, take several times as much.
const PART: u64 = 8;

/// Tokens of the samples of a batch on an accelerator that does not tell its memory.
const TOKENS: usize = 32_768;

/// Policies that share a prefill on a host.
const POLICIES: usize = 8;

/// How much of the work of a run is done together.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Speed")]
pub(crate) struct BatchArgs {
    /// Prompts of about one length per batch [default: by the device's memory; on flex and cpu 1]
    ///
    /// By default the full caches of a batch take an eighth of the device's memory, or 32,768
    /// tokens where it is not known.
    #[arg(long, value_name = "N")]
    batch: Option<NonZeroUsize>,

    /// Policies that share a prefill [default: on flex and cpu 8, else 1]
    ///
    /// Each holds its cache until it has answered. 1 shares none, and times the prefill of each.
    #[arg(long, value_name = "N")]
    share_prefill: Option<NonZeroUsize>,
}

impl BatchArgs {
    pub(crate) fn limit(&self, name: &str, devices: &DeviceMap) -> BatchLimit {
        match (self.batch, devices.memory()) {
            (Some(rows), _) => BatchLimit::Rows(rows.get()),
            (None, _) if !is_accelerator(name) => BatchLimit::Rows(1),
            (None, Some(memory)) => BatchLimit::Bytes(memory / PART),
            (None, None) => BatchLimit::Tokens(TOKENS),
        }
    }

    /// On an accelerator launches look for memory among the buffers of all caches, which takes as
    /// long as a shared prefill saves.
    pub(crate) fn policies(&self, device: &str) -> usize {
        let default = if is_accelerator(device) { 1 } else { POLICIES };
        self.share_prefill.map_or(default, NonZeroUsize::get)
    }
}
