use std::{fs, path::Path};

use briquette_eval::{Error, Result, files};
use serde::Serialize;

/// Creates a folder, if it is not there.
pub(super) fn create_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(|error| failed(dir, error))
}

/// A result with the mark by which its file is known.
#[derive(Serialize)]
pub struct Marked<'a, T> {
    written_by: &'static str,
    #[serde(flatten)]
    result: &'a T,
}

impl<'a, T> Marked<'a, T> {
    /// A result with the mark of this version.
    pub fn new(result: &'a T) -> Self {
        Self { written_by: concat!("briquette ", env!("CARGO_PKG_VERSION")), result }
    }
}

pub(super) fn write_json(path: &Path, result: &impl Serialize) -> Result<()> {
    let text =
        serde_json::to_string_pretty(&Marked::new(result)).map_err(|error| failed(path, error))?;
    files::write(path, text + "\n")
}

/// A header, and a line a row.
pub(super) fn write_csv<T: Serialize>(path: &Path, rows: impl Iterator<Item = T>) -> Result<()> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.serialize(row).map_err(|error| failed(path, error))?;
    }
    files::write(path, writer.into_inner().map_err(|error| failed(path, error))?)
}

fn failed(path: &Path, error: impl ToString) -> Error {
    Error::Write { path: path.into(), message: error.to_string() }
}
