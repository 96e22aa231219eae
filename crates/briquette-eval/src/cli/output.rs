use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
};

use anyhow::{Context, Result};
use serde::Serialize;

/// Where results go.
#[derive(Debug, clap::Args)]
pub(super) struct OutputArgs {
    /// Write the result as JSON too; `-` is stdout, and what is for people then goes to stderr
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl OutputArgs {
    fn json_on_stdout(&self) -> bool {
        self.json.as_deref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// The stream for people.
    pub(super) fn human(&self) -> Box<dyn Write> {
        if self.json_on_stdout() { Box::new(io::stderr()) } else { Box::new(io::stdout()) }
    }

    /// Writes `value`, if it was asked for.
    pub(super) fn write_json(&self, value: &impl Serialize) -> Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(value)? + "\n";
        if self.json_on_stdout() {
            io::stdout().write_all(text.as_bytes())?;
            return Ok(());
        }
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Bytes in the largest binary unit they fill.
pub(super) fn bytes(count: usize) -> String {
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
}
