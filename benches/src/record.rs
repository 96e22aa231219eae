//! Records that the programs write: one line of JSON per measurement.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One measurement of one row of the table. `benches/torch/kernels.py` writes the same.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Record {
    /// The implementation: `briquette` or `pytorch`.
    pub side: String,
    /// The row of the table.
    pub row: String,
    /// The name of one of several ways to compute it.
    pub variant: String,
    /// Sizes, for people.
    pub shape: String,
    /// Milliseconds per call, back to back, on the device's clock.
    pub ms: Option<f64>,
    /// The same from a captured graph.
    pub ms_graph: Option<f64>,
    /// The same on the host's clock.
    pub ms_call: Option<f64>,
    /// The first call, compiling included.
    pub ms_first: Option<f64>,
    /// The lowest and the highest `ms` of a window.
    pub ms_range: Option<(f64, f64)>,
    /// The fewest bytes that must be moved: each input read once, each output written once.
    pub bytes: Option<f64>,
    /// The operations of the matrix products that must be done.
    pub operations: Option<f64>,
    /// The largest difference from the reference, and the largest number of the reference.
    pub difference: Option<(f64, f64)>,
    /// The error, if the measurement failed.
    pub error: Option<String>,
    /// The reason why there is no graph.
    pub graph_error: Option<String>,
    /// The type of the numbers.
    pub dtype: String,
    /// The device.
    pub device: String,
    /// Versions of what ran.
    pub versions: String,
    /// The day, in UTC.
    pub date: String,
    /// Whether sizes were small.
    pub quick: bool,
}

/// Destination of records: the standard output, and a file if there is one, each record as soon as
/// it is known.
#[derive(Debug)]
pub struct Sink {
    file: Option<File>,
}

impl Sink {
    /// Appends to `path`.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn new(path: Option<&PathBuf>) -> Result<Self> {
        let open = |path: &PathBuf| {
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .with_context(|| format!("cannot write {}", path.display()))
        };
        Ok(Self { file: path.map(open).transpose()? })
    }

    /// Writes one line.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&mut self, record: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(record)?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()?;
        if let Some(file) = &mut self.file {
            writeln!(file, "{line}")?;
            file.flush()?;
        }
        Ok(())
    }
}

/// Reads records; other lines are passed over. Of several of one row and variant the last counts.
///
/// # Errors
/// If the file cannot be read.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    read_behind(&mut records, path)?;
    Ok(records)
}

/// Reads more lines behind `records`, of which those of the same row and variant give way.
///
/// # Errors
/// If the file cannot be read.
pub fn read_behind(records: &mut Vec<Record>, path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    for line in BufReader::new(file).lines() {
        let Ok(record) = serde_json::from_str::<Record>(&line?) else { continue };
        if record.row.is_empty() {
            continue;
        }
        let same = |other: &Record| {
            (&other.side, &other.row, &other.variant)
                == (&record.side, &record.row, &record.variant)
        };
        match records.iter_mut().find(|other| same(other)) {
            Some(other) => *other = record,
            None => records.push(record),
        }
    }
    Ok(())
}

/// The day, in UTC.
pub fn today() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let mut days = now.map_or(0, |now| now.as_secs() / 86_400) as i64;
    let mut year = 1970;
    let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    while days >= 365 + i64::from(leap(year)) {
        days -= 365 + i64::from(leap(year));
        year += 1;
    }
    let february = 28 + i64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}
