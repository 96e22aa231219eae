use std::{env, num::NonZeroUsize, thread};

use anyhow::{Result, bail};

/// Threads of a process at most.
const MOST: u128 = 4096;

/// Refuses an environment that asks for more threads than a process can have, which would be begun
/// one by one.
pub(super) fn check_environment() -> Result<()> {
    for name in ["RAYON_NUM_THREADS", "RAYON_RS_NUM_CPUS"] {
        let asked = env::var(name).ok().and_then(|text| text.trim().parse::<u128>().ok());
        if let Some(asked) = asked.filter(|asked| *asked > MOST) {
            bail!("{name} asks for {asked} threads, at most {MOST} can be had");
        }
    }
    Ok(())
}

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
