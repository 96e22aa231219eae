use std::{num::NonZeroUsize, thread};

/// How much runs at a time.
#[derive(Debug, clap::Args)]
pub(super) struct JobsArgs {
    /// Prompts to run at a time [default: one a core on flex, else 1]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
}

impl JobsArgs {
    /// An accelerator is kept busy by one prompt; flex computes most of one on one core.
    pub(super) fn threads(&self, device: &str) -> usize {
        match self.jobs {
            Some(jobs) => jobs.get(),
            None if device == "flex" => {
                thread::available_parallelism().map_or(1, NonZeroUsize::get)
            }
            None => 1,
        }
    }
}
