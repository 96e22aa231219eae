use anyhow::Result;
use clap::Command;
use clap_complete::{Shell, generate};

use crate::terminal::output::stdout;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(args: Args, mut command: Command) -> Result<()> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    generate(args.shell, &mut command, name, &mut script);
    stdout(&String::from_utf8_lossy(&script))
}
