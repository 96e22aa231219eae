use std::{
    borrow::Cow,
    fmt::Display,
    io::{self, IsTerminal, Write},
    path::PathBuf,
    sync::OnceLock,
};

use anyhow::{Context, Result};
use briquette::ops::Fallback;
use briquette_eval::{files, steering::steers, warnings};
use briquette_report::{
    Marked,
    table::{Form, Sheet},
};
use clap::ValueEnum;
use serde::Serialize;

use crate::terminal::output_gate::{Mark, OutputGate};

/// How much is said on stderr beside errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Nothing.
    Quiet,
    /// Progress, and what should be known of a result.
    #[default]
    Normal,
    /// That, and what was done otherwise than it could have been.
    Verbose,
}

/// Set once, before a command runs.
static VERBOSITY: OnceLock<Verbosity> = OnceLock::new();

/// Sets how much is said.
pub(crate) fn say(verbosity: Verbosity) {
    let _ = VERBOSITY.set(verbosity);
}

/// How much is said.
pub(crate) fn verbosity() -> Verbosity {
    VERBOSITY.get().copied().unwrap_or_default()
}

/// Where results go.
#[derive(Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Write the result as JSON too; `-` is stdout
    ///
    /// With `-`, everything for people goes to stderr.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    json: Option<PathBuf>,
    #[command(flatten)]
    force: ForceArgs,
}

/// Whether files of others may be overwritten.
#[derive(Debug, clap::Args)]
pub(crate) struct ForceArgs {
    /// Overwrite files that briquette did not write
    ///
    /// Files that the command reads are never overwritten.
    #[arg(long, help_heading = "Output")]
    force: bool,
}

impl ForceArgs {
    /// The gate of a command that reads these files and folders.
    pub(crate) fn gate(&self, inputs: impl IntoIterator<Item = PathBuf>) -> OutputGate {
        OutputGate::new(self.force, inputs)
    }
}

impl OutputArgs {
    /// Whether files that briquette did not write may be overwritten.
    pub(crate) fn overwrites(&self) -> bool {
        self.force.force
    }

    fn json_on_stdout(&self) -> bool {
        self.json.as_deref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// The gate of a command that reads these files and folders, behind the JSON.
    pub(crate) fn gate(&self, inputs: impl IntoIterator<Item = PathBuf>) -> Result<OutputGate> {
        self.gate_as(Mark::Json, inputs)
    }

    /// As [`gate`](Self::gate), of a command whose JSON has this mark.
    pub(crate) fn gate_as(
        &self,
        mark: Mark,
        inputs: impl IntoIterator<Item = PathBuf>,
    ) -> Result<OutputGate> {
        let mut gate = self.force.gate(inputs);
        match &self.json {
            Some(path) if !self.json_on_stdout() => gate.file(path, mark)?,
            _ => {}
        }
        Ok(gate)
    }

    /// Writes a result as JSON, if it was asked for, and the text for people.
    pub(crate) fn write(&self, human: &str, result: &impl Serialize) -> Result<()> {
        self.write_plain(human, &Marked::new(result))
    }

    /// As [`write`](Self::write), without the mark. Files come first, so that they are there also
    /// when nobody reads the text.
    pub(crate) fn write_plain(&self, human: &str, value: &impl Serialize) -> Result<()> {
        match &self.json {
            Some(_) if self.json_on_stdout() => {
                if !human.is_empty() {
                    note(human);
                }
                stdout(&json(value)?)
            }
            path => {
                if let Some(path) = path {
                    files::write(path, json(value)?)?;
                }
                stdout(&plain(human))
            }
        }
    }

    /// The stream for people, for text that comes bit by bit.
    pub(crate) fn stream(&self) -> Stream {
        match self.json_on_stdout() {
            // The result is what counts: it is written also where nobody listens to this.
            true => {
                let terminal = io::stderr().is_terminal();
                Stream { to: Box::new(io::stderr()), terminal, counts: false }
            }
            false => Stream::stdout(),
        }
    }
}

/// A result as JSON. Of the characters that [`steers`] finds the form itself writes those below a
/// space as escapes; here all are, since a terminal may be what reads it.
fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value)? + "\n";
    let shown = |c: char| match c != '\n' && steers(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    Ok(match text.contains(|c| c != '\n' && steers(c)) {
        true => text.chars().map(shown).collect(),
        false => text,
    })
}

/// A stream for people. On a terminal it shows control characters rather than sending them.
pub(crate) struct Stream {
    to: Box<dyn Write>,
    terminal: bool,
    /// Whether what cannot be written is an error.
    counts: bool,
}

impl Stream {
    pub(crate) fn stdout() -> Self {
        let terminal = io::stdout().is_terminal();
        Self { to: Box::new(io::stdout()), terminal, counts: true }
    }

    pub(crate) fn show(&mut self, text: &str) -> Result<()> {
        let text = if self.terminal { plain(text) } else { text.into() };
        let written = self.to.write_all(text.as_bytes()).and_then(|()| self.to.flush());
        match written {
            Err(_) if !self.counts => Ok(()),
            written => written.context("cannot write what was generated"),
        }
    }
}

/// Where a result with tables goes, and how they are written.
#[derive(Debug, clap::Args)]
pub(crate) struct TableArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Form of the tables
    ///
    /// All but `table` write everything else to stderr, and no tables there. With `--json -` the
    /// JSON is all that is on stdout.
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    format: Format,
    /// Show all columns, wider than the terminal
    #[arg(long, help_heading = "Output")]
    wide: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    #[default]
    Table,
    Tsv,
    Markdown,
    /// The result as `--json` writes it
    Json,
}

/// Columns of a table where it goes to a file or another program.
const PIPED: u16 = 100;

impl TableArgs {
    /// As [`OutputArgs::write`], of a result with tables. Beside a form for programs people get no
    /// tables, but what casts doubt on the result, and the names of files.
    pub(crate) fn write(&self, shown: &Shown, result: &impl Serialize) -> Result<()> {
        let (form, output) = (self.form(), &self.output);
        let written = form.map_or_else(String::new, |form| shown.tables(form));
        let intervals = form.map_or_else(String::new, |form| shown.intervals(form));
        let Shown { before, behind, .. } = shown;
        if self.format == Format::Table {
            return output.write(&format!("{before}{written}{intervals}{behind}"), result);
        }
        [before, &intervals, behind]
            .into_iter()
            .filter(|text| !text.is_empty())
            .for_each(|text| note(text));
        match (self.format, output.json_on_stdout()) {
            // Two results on one stream would be none.
            (_, true) => return output.write("", result),
            (Format::Json, false) => {
                output.write("", result)?;
                stdout(&json(&Marked::new(result))?)?;
            }
            _ => output.write(&written, result)?,
        }
        if let Some(path) = &output.json {
            note(&format!("the result as JSON is in {}", path.display()));
        }
        Ok(())
    }

    /// The form of the tables, where they are not JSON.
    fn form(&self) -> Option<Form> {
        match self.format {
            Format::Tsv => Some(Form::Tsv),
            Format::Markdown => Some(Form::Markdown),
            Format::Table if self.wide => Some(Form::Ruled(None)),
            Format::Table => Some(Form::Ruled(Some(columns()))),
            Format::Json => None,
        }
    }
}

/// Columns that tables are to fit into: those of the terminal that results go to, by `COLUMNS` or
/// itself.
fn columns() -> u16 {
    let named = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    named.unwrap_or_else(|| {
        let terminal = console::Term::stdout();
        let size = terminal.is_term().then(|| terminal.size_checked()).flatten();
        size.map_or(PIPED, |(_, columns)| columns)
    })
}

/// A result for people: tables, and what is said before and behind them.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) before: String,
    pub(crate) tables: Vec<Sheet>,
    pub(crate) behind: String,
}

impl Shown {
    fn tables(&self, form: Form) -> String {
        let tables = self.tables.iter().map(|sheet| sheet.write(form));
        tables.collect::<Vec<_>>().join("\n")
    }

    /// The lines on intervals that are shown, each once.
    fn intervals(&self, form: Form) -> String {
        let mut lines: Vec<&str> =
            self.tables.iter().filter_map(|sheet| sheet.intervals(form)).collect();
        lines.dedup();
        lines.into_iter().map(|line| format!("{line}\n")).collect()
    }
}

/// Writes text to stdout. A reader who has gone is an error as any other.
pub(crate) fn stdout(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.context("cannot write to stdout")
}

/// Writes a line to stderr, if anybody listens and nothing says that it should be quiet there.
pub(crate) fn note(text: &str) {
    if verbosity() != Verbosity::Quiet {
        error(text);
    }
}

/// Writes a line of each of these, behind what they are.
pub(crate) fn note_each(what: &str, all: impl IntoIterator<Item = impl Display>) {
    all.into_iter().for_each(|one| note(&format!("{what}: {one}")));
}

/// Writes the warnings of the files that were read so far.
pub(crate) fn note_warnings() {
    note_each("warning", warnings::take());
}

/// Says which operations tensor operations answered for a kernel, if more is to be said than usual.
pub(crate) fn note_fallbacks(model: &str, fallbacks: &[Fallback]) {
    if verbosity() == Verbosity::Verbose {
        for Fallback { operation, calls, reason } in fallbacks {
            note(&format!(
                "{model}: {operation} was not answered by a kernel, {calls} times: {reason}"
            ));
        }
    }
}

/// Writes a line to stderr, if anybody listens.
pub(crate) fn error(text: &str) {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    let _ = io::stderr().write_all(format!("{}{end}", plain(text)).as_bytes());
}

/// The text with the characters written out that [`steers`] finds, but for the ends of lines and
/// tabs: what comes from data must not steer a terminal.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    let steers = |c: char| steers(c) && c != '\n' && c != '\t';
    if !text.contains(steers) {
        return text.into();
    }
    let shown = |c: char| match steers(c) {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect::<String>().into()
}

/// The message and its causes, save those it already ends with.
pub(crate) fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Bytes in the largest binary unit they fill.
pub(crate) fn bytes(count: u64) -> String {
    let count = count as f64;
    [("GiB", 30), ("MiB", 20), ("KiB", 10)]
        .into_iter()
        .map(|(unit, power)| (unit, count / f64::from(1 << power)))
        .find(|(_, amount)| *amount >= 1.0)
        .map_or_else(|| format!("{count} B"), |(unit, amount)| format!("{amount:.1} {unit}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_take_the_largest_unit() {
        let texts = [0, 1023, 1024, 1 << 20, 5 << 29].map(super::bytes);
        assert_eq!(texts, ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "2.5 GiB"]);
    }

    #[test]
    fn nothing_steers_a_terminal() {
        assert_eq!(super::plain("a\tb\nµ"), "a\tb\nµ");
        assert_eq!(super::plain("\u{1b}[2J\r\u{9b}x"), "\\u{1b}[2J\\r\\u{9b}x");
        assert_eq!(super::plain("a\u{202e}b\u{2066}"), "a\\u{202e}b\\u{2066}");
        let text = "a\u{9b}\u{202e}\u{7f}\n\"µ";
        let json = super::json(&text).unwrap();
        assert_eq!(json, "\"a\\u009b\\u202e\\u007f\\n\\\"µ\"\n");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
