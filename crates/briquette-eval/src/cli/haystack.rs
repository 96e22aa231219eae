use std::path::PathBuf;

use crate::{Result, tasks::haystack::Haystack};

/// What needles are hidden in.
#[derive(Debug, clap::Args)]
pub(super) struct HaystackArgs {
    /// A folder of .txt files to hide needles in [default: built-in prose]
    #[arg(long, value_name = "DIR")]
    haystack: Option<PathBuf>,
}

impl HaystackArgs {
    pub(super) fn read(&self) -> Result<Haystack> {
        match &self.haystack {
            Some(dir) => Haystack::from_dir(dir),
            None => Ok(Haystack::built_in()),
        }
    }
}
