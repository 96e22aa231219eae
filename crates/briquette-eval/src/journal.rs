//! Results kept as they come, so that a run that was killed continues where it was.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{ErrorKind, Read, Write},
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{Error, Result};

/// A file of JSON lines: the settings of the run, then a line a result.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens the journal at `path`, or begins one, and returns the results it holds. A last line that is cut short is
    /// dropped.
    ///
    /// # Errors
    /// [`Error::JournalSettings`] if it was begun with other settings, [`Error::JournalBusy`] if another run writes it,
    /// [`Error::JournalLine`] for a line that is not a result, [`Error::Read`] and [`Error::Write`].
    pub fn open<T: DeserializeOwned>(
        path: &Path,
        settings: &impl Serialize,
    ) -> Result<(Self, Vec<T>)> {
        let written = |error: std::io::Error| write_error(path, &error);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(written)?;
        }
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).open(path).map_err(written)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(Error::JournalBusy { path: path.into() }),
            // Some file systems know no locks.
            Err(TryLockError::Error(error)) if error.kind() != ErrorKind::Unsupported => {
                return Err(written(error));
            }
            _ => {}
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|source| Error::Read { path: path.into(), source })?;
        let settings = serde_json::to_value(settings)
            .map_err(|error| Error::Write { path: path.into(), message: error.to_string() })?;
        let Kept { results, bytes } = read(path, &bytes, &settings)?;
        file.set_len(bytes as u64).map_err(written)?;
        let mut journal = Self { path: path.into(), file };
        if bytes == 0 {
            journal.push(&settings)?;
        }
        Ok((journal, results))
    }

    /// Adds a result.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn push(&mut self, result: &impl Serialize) -> Result<()> {
        let failed = |message| Error::Write { path: self.path.clone(), message };
        let line = serde_json::to_string(result).map_err(|error| failed(error.to_string()))?;
        self.file
            .write_all((line + "\n").as_bytes())
            .map_err(|error| write_error(&self.path, &error))
    }

    /// Deletes the file.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn remove(self) -> Result<()> {
        fs::remove_file(&self.path).map_err(|error| write_error(&self.path, &error))
    }
}

/// What can be used of a journal.
struct Kept<T> {
    results: Vec<T>,
    /// Its length.
    bytes: usize,
}

fn read<T: DeserializeOwned>(path: &Path, bytes: &[u8], settings: &Value) -> Result<Kept<T>> {
    let mut kept = Kept { results: Vec::new(), bytes: 0 };
    for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let end = kept.bytes + line.len();
        let last = end == bytes.len();
        // A line without its end was being written when the run was killed.
        let Some(whole) = line.strip_suffix(b"\n") else { return Ok(kept) };
        if number == 0 {
            match serde_json::from_slice::<Value>(whole) {
                Ok(found) if found == *settings => {}
                Err(_) if last => return Ok(kept),
                _ => return Err(Error::JournalSettings { path: path.into() }),
            }
        } else {
            match serde_json::from_slice(whole) {
                Ok(result) => kept.results.push(result),
                Err(_) if last => return Ok(kept),
                Err(error) => {
                    return Err(Error::JournalLine {
                        path: path.into(),
                        line: number + 1,
                        message: error.to_string(),
                    });
                }
            }
        }
        kept.bytes = end;
    }
    Ok(kept)
}

fn write_error(path: &Path, error: &std::io::Error) -> Error {
    Error::Write { path: path.into(), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Step = (usize, f32);

    fn open(path: &Path, seed: u64) -> Result<(Journal, Vec<Step>)> {
        Journal::open(path, &serde_json::json!({ "seed": seed }))
    }

    fn begun(path: &Path) -> Vec<Step> {
        let steps: Vec<Step> = (0..3).map(|i| (i, 0.1 + i as f32 / 3.0)).collect();
        let (mut journal, found) = open(path, 1).unwrap();
        assert!(found.is_empty());
        for step in &steps {
            journal.push(step).unwrap();
        }
        steps
    }

    #[test]
    fn a_run_continues_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/a.jsonl");
        let steps = begun(&path);
        let (mut journal, found) = open(&path, 1).unwrap();
        assert_eq!(found, steps);
        journal.push(&(3, 7.0)).unwrap();
        drop(journal);
        let (journal, found) = open(&path, 1).unwrap();
        assert_eq!(found.len(), 4);
        journal.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_damaged_last_line_is_dropped_and_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        for tail in ["[3,0.", "[3,0.\n", "[3,0.5]", "\0\0\0\0", "\n"] {
            let steps = begun(&path);
            let whole = fs::read(&path).unwrap();
            fs::write(&path, [&whole[..], tail.as_bytes()].concat()).unwrap();
            let (mut journal, found) = open(&path, 1).unwrap();
            assert_eq!(found, steps, "{tail:?}");
            journal.push(&(3, 0.5)).unwrap();
            drop(journal);
            assert_eq!(fs::read(&path).unwrap(), [&whole[..], b"[3,0.5]\n"].concat(), "{tail:?}");
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_damaged_first_line_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        for text in ["", "{\"se"] {
            fs::write(&path, text).unwrap();
            let (_, found) = open(&path, 1).unwrap();
            assert!(found.is_empty());
            assert_eq!(fs::read_to_string(&path).unwrap(), "{\"seed\":1}\n");
        }
    }

    #[test]
    fn what_is_no_continuation_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        begun(&path);
        assert!(matches!(open(&path, 2), Err(Error::JournalSettings { .. })));
        let held = open(&path, 1).unwrap();
        assert!(matches!(open(&path, 1), Err(Error::JournalBusy { .. })));
        drop(held);
        let text = fs::read_to_string(&path).unwrap().replacen("[1,", "[x,", 1);
        fs::write(&path, text).unwrap();
        assert!(matches!(open(&path, 1), Err(Error::JournalLine { line: 3, .. })));
    }
}
