use std::{fs, path::Path};

use briquette_eval::{Error, Result, files};
use serde::{Serialize, Serializer};

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

/// A text in a cell, which a spreadsheet takes for a formula where it begins with `=`, `+`, `-`,
/// `@` or a tab: such a text stands behind `'`. A dash alone is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text<'a>(pub(super) &'a str);

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match self.0.starts_with(['=', '+', '-', '@', '\t', '\r']) && self.0 != "-" {
            true => to.serialize_str(&format!("'{}", self.0)),
            false => to.serialize_str(self.0),
        }
    }
}

/// A header, and a line a row. Texts that a file or a command line said are [`Text`]s.
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
