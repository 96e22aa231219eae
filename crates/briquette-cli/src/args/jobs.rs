use std::{env, num::NonZeroUsize, thread};

use anyhow::{Result, bail};

/// Threads of a process at most.
const MOST: u128 = 4096;

/// Refuses an environment that asks for more threads than a process can have, which would be begun
/// one by one.
pub(crate) fn check_environment() -> Result<()> {
    for name in ["RAYON_NUM_THREADS", "RAYON_RS_NUM_CPUS"] {
        let asked = env::var(name).ok().and_then(|text| text.trim().parse::<u128>().ok());
        if let Some(asked) = asked.filter(|asked| *asked > MOST) {
            bail!("{name} asks for {asked} threads, at most {MOST} can be had");
        }
    }
    Ok(())
}

/// Makes this thread one of those that compute on the host. From outside of them each product waits
/// for one of them to wake up and for its answer, which is half of a decoded token of a small
/// model.
pub(crate) fn compute_here() {
    // Where they are there already, they are as good but slower.
    let _ = rayon::ThreadPoolBuilder::new().use_current_thread().build_global();
}

/// Whether a device of this name is another than the cores of this machine.
pub(crate) fn is_accelerator(device: &str) -> bool {
    !matches!(device, "flex" | "cpu")
}

/// How much runs at a time.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Speed")]
pub(crate) struct JobsArgs {
    /// Prompts at a time, each on a thread [default: one per core on flex, else 1]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
}

impl JobsArgs {
    /// Flex computes most of a prompt on one core. An accelerator takes launches one after another:
    /// several threads slow each other down there.
    pub(crate) fn threads(&self, device: &str) -> Result<usize> {
        match self.jobs {
            Some(jobs) if jobs.get() > 1 && is_accelerator(device) => bail!(
                "--jobs {jobs} on {device}: threads wait for each other there, so one at a time is run; a batch of \
                 prompts is faster (--batch), and --shard splits a run over devices"
            ),
            Some(jobs) => Ok(jobs.get()),
            None if device == "flex" => {
                Ok(thread::available_parallelism().map_or(1, NonZeroUsize::get))
            }
            None => Ok(1),
        }
    }
}
