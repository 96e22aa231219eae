use std::{ffi::OsString, fs, io, path::PathBuf};

use anyhow::{Context, Result};
use briquette_eval::files;
use clap::Command;
use clap_mangen::{Man, generate_to};

use crate::terminal::{
    output::{ForceArgs, stdout},
    output_gate::Mark,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write a page of the command and one of each of its commands into this folder, rather than
    /// the first to stdout
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    force: ForceArgs,
}

pub(crate) fn run(args: Args, command: Command) -> Result<()> {
    let Some(dir) = args.out else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page)?;
        return stdout(&String::from_utf8_lossy(&page));
    };
    let failed = || format!("cannot write the manual into {}", dir.display());
    let pages = pages(command).with_context(failed)?;
    let mut gate = args.force.gate([]);
    pages.iter().try_for_each(|(name, _)| gate.new_file(&dir.join(name), Mark::Manual))?;
    fs::create_dir_all(&dir).with_context(failed)?;
    pages.iter().try_for_each(|(name, page)| files::write(&dir.join(name), page))?;
    stdout(&format!("the manual is in {}\n", dir.display()))
}

/// The page of each command, by the name of its file.
fn pages(command: Command) -> io::Result<Vec<(OsString, Vec<u8>)>> {
    let dir = tempfile::tempdir()?;
    generate_to(command, dir.path())?;
    let page = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.file_name(), fs::read(entry.path())?))
    };
    fs::read_dir(dir.path())?.map(page).collect()
}
