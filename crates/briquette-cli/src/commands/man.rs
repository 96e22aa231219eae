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
.SH \"EXIT STATUS\"
.TP
0
Done.
.TP
1
Failed. One message on stderr says why.
.TP
2
The command line cannot be understood.
.TP
130
Interrupted. Results are kept, and the same command goes on.
";

pub(crate) fn run(args: Args, mut command: Command) -> Result<()> {
    // Gives each command its full name.
    command.build();
    let Some(dir) = args.out else {
        let page = page(&command, "briquette")?;
        return stdout(&String::from_utf8_lossy(&page));
    };
    let failed = || format!("cannot write the manual into {}", dir.display());
    let commands = command.get_subcommands().filter(|command| command.get_name() != "help");
    let named = commands.map(|one| (format!("briquette-{}", one.get_name()), one));
    let pages = [("briquette".to_owned(), &command)].into_iter().chain(named);
    let pages = pages.map(|(name, one)| Ok((format!("{name}.1"), page(one, &name)?)));
    let pages = pages.collect::<io::Result<Vec<_>>>().with_context(failed)?;
    let mut gate = args.force.gate([]);
    pages.iter().try_for_each(|(name, _)| gate.new_file(&dir.join(name), Mark::Manual))?;
    fs::create_dir_all(&dir).with_context(failed)?;
    pages.iter().try_for_each(|(name, page)| files::write(&dir.join(name), page))?;
    stdout(&format!("the manual is in {}\n", dir.display()))
}

/// The page of a command.
fn page(command: &Command, name: &str) -> io::Result<Vec<u8>> {
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
    page.write_all(ENDS.as_bytes())?;
    Ok(page)
}
