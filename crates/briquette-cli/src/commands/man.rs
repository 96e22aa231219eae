use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
};

use anyhow::{Context, Result};
use briquette_eval::files;
use clap::Command;
use clap_mangen::Man;

use crate::terminal::{
    output::{ForceArgs, stdout},
    output_gate::Mark,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder for a page of each command [default: the first page goes to stdout]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    force: ForceArgs,
}

/// Sections of every page that clap does not know.
const ENDS: &str = "\
.SH ENVIRONMENT
.TP
BRIQUETTE_MODEL
The model where \\-\\-model is not given.
.TP
BRIQUETTE_DEVICE
The device where \\-\\-device is not given.
.TP
COLUMNS
Columns that tables fit into.
.SH FILES
.TP
profile.json
The profile of a model, in its folder: \\fBbriquette calibrate\\fR writes it.
.TP
results.jsonl
The results of a run, a line per sample. The same command goes on from there.
.TP
report.html
The page of a run.
.TP
~/.cache/briquette
Kernels that were compiled for GPUs, a folder per version. It may be deleted.
.SH \"EXIT STATUS\"
";

pub(crate) fn run(args: Args, mut command: Command) -> Result<()> {
    // Gives each command its full name.
    command.build();
    let ends = ends(&command);
    let Some(dir) = args.out else {
        let page = page(&command, "briquette", &ends)?;
        return stdout(&String::from_utf8_lossy(&page));
    };
    let failed = || format!("cannot write the manual into {}", dir.display());
    let commands = command.get_subcommands().filter(|command| command.get_name() != "help");
    let named = commands.map(|one| (format!("briquette-{}", one.get_name()), one));
    let pages = [("briquette".to_owned(), &command)].into_iter().chain(named);
    let pages = pages.map(|(name, one)| Ok((format!("{name}.1"), page(one, &name, &ends)?)));
    let pages = pages.collect::<io::Result<Vec<_>>>().with_context(failed)?;
    let mut gate = args.force.gate([]);
    pages.iter().try_for_each(|(name, _)| gate.new_file(&dir.join(name), Mark::Manual))?;
    fs::create_dir_all(&dir).with_context(failed)?;
    pages.iter().try_for_each(|(name, page)| files::write(&dir.join(name), page))?;
    stdout(&format!("the manual is in {}\n", dir.display()))
}

/// These sections, with the exit codes that the help of the whole command names.
fn ends(command: &Command) -> String {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let codes = help.lines().filter_map(|line| line.trim_start().split_once("  "));
    let codes = codes.map(|(code, text)| format!(".TP\n{code}\n{text}\n"));
    ENDS.to_owned() + &codes.collect::<String>()
}

/// The page of a command, with these last sections.
fn page(command: &Command, name: &str, ends: &str) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let examples = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let man = Man::new(command.clone()).title(name.to_owned());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some((_, examples)) = examples.split_once("Examples:\n") {
        write!(page, ".SH EXAMPLES\n.nf\n{}\n.fi\n", examples.replace('-', "\\-"))?;
    }
    page.write_all(ends.as_bytes())?;
    Ok(page)
}
