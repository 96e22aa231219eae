use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Command;
use clap_mangen::{Man, generate_to};

use super::output::stdout;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Write a page of the command and one of each of its commands into this folder, rather than the first to stdout
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) fn run(args: Args, command: Command) -> Result<()> {
    let Some(dir) = args.out else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page)?;
        return stdout(&String::from_utf8_lossy(&page));
    };
    let failed = || format!("cannot write the manual into {}", dir.display());
    std::fs::create_dir_all(&dir).and_then(|()| generate_to(command, &dir)).with_context(failed)?;
    stdout(&format!("the manual is in {}\n", dir.display()))
}
