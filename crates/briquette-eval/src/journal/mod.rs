//! Results kept as they come, so that a run that was killed continues where it was.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

mod command;
mod difference;
mod steps;

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use same_file::Handle;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

pub(crate) use command::{RUN, check_command};
pub(crate) use difference::same;
pub use steps::Steps;

use crate::{
    Error, Result,
    files::{self, Reader},
};

/// How the first line of every journal begins, which tells a journal from any other file.
const BEGIN: &[u8] = b"{\"briquette\":";

/// Bytes of a first line that are read at most.
const FIRST: u64 = 1 << 20;

/// Which contents of an existing journal are accepted beside undamaged results of the same run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    /// Results of other weights.
    pub other_weights: bool,
    /// Damaged lines: they are moved into the file `NAME.damaged`, and what they were of is
    /// measured again.
    pub damaged: bool,
}

/// A file of JSON lines: the settings of the run, an object whose first key is `briquette`, then a
/// line a result.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// The file by its place on the disk rather than by its name.
    handle: Handle,
    /// Bytes of whole lines.
    length: u64,
}

impl Journal {
    /// Opens the journal at `path`, or begins one, and returns the results it holds. A last line
    /// without its end was being written when the run was killed, and is cut off; nothing else is
    /// ever taken away.
    ///
    /// # Errors
    /// [`Error::NoJournal`] for a file that something else wrote, [`Error::OtherCommand`] for that
    /// of another command, [`Error::RunSettings`] and [`Error::OtherWeights`] if it was begun with
    /// other settings, [`Error::JournalBusy`] if another run writes it, [`Error::JournalLine`] for
    /// a line that is not a result, [`Error::Read`] and [`Error::Write`].
    pub fn open<T: DeserializeOwned>(
        path: &Path,
        settings: &impl Serialize,
        accept: Accept,
    ) -> Result<(Self, Vec<T>)> {
        let settings = serde_json::to_value(settings).map_err(|error| Error::write(path, error))?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|error| Error::write(path, error))?;
        }
        let (mut journal, bytes) = Self::held(path)?;
        let kept = read::<T>(path, &bytes, &settings, accept)?;
        if !kept.damaged.is_empty() {
            set_aside(path, &kept.damaged)?;
            files::write(path, kept.lines.concat())?;
            // The file is another now.
            (journal, _) = Self::held(path)?;
        }
        journal.length = kept.lines.iter().map(|line| line.len() as u64).sum();
        journal.file.set_len(journal.length).map_err(|error| Error::write(path, error))?;
        if journal.length == 0 {
            journal.push(&settings)?;
        }
        Ok((journal, kept.results))
    }

    /// The file as it is, locked.
    fn held(path: &Path) -> Result<(Self, Vec<u8>)> {
        let written = |error: std::io::Error| Error::write(path, error);
        // A named pipe would be waited for.
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(Error::NoJournal { path: path.into() });
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).open(path).map_err(written)?;
        lock(path, &file, written)?;
        let mut bytes = Vec::new();
        let read = file.try_clone().and_then(Reader::of).and_then(|mut all| all.rest(&mut bytes));
        read.map_err(|source| Error::read(path, source))?;
        let handle = file.try_clone().and_then(Handle::from_file).map_err(written)?;
        Ok((Self { path: path.into(), file, handle, length: 0 }, bytes))
    }

    /// Adds a result.
    ///
    /// # Errors
    /// [`Error::JournalGone`] if the file was deleted or replaced, [`Error::JournalChanged`] if
    /// something else cut it or wrote to it, [`Error::Write`].
    pub fn push(&mut self, result: &impl Serialize) -> Result<()> {
        self.check()?;
        let line =
            serde_json::to_string(result).map_err(|error| Error::write(&self.path, error))? + "\n";
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            // What was written of it would be in the way of the next.
            let _ = self.file.set_len(self.length);
            return Err(Error::write(&self.path, error));
        }
        self.length = self.length.saturating_add(line.len() as u64);
        Ok(())
    }

    /// Writes these results in place of those it holds. The settings stay.
    ///
    /// # Errors
    /// As [`push`](Self::push), and [`Error::JournalBusy`] if another run takes the file over.
    pub fn replace(&mut self, results: &[impl Serialize]) -> Result<()> {
        self.check()?;
        let (path, failed) = (self.path.clone(), |error| Error::write(&self.path, error));
        let bytes = fs::read(&path).map_err(|source| Error::read(&path, source))?;
        let mut text = bytes.split_inclusive(|byte| *byte == b'\n').next().unwrap_or(&[]).to_vec();
        for result in results {
            serde_json::to_writer(&mut text, result).map_err(failed)?;
            text.push(b'\n');
        }
        let length = text.len() as u64;
        files::write(&path, text)?;
        // The file is another now.
        (*self, _) = Self::held(&path)?;
        self.length = length;
        Ok(())
    }

    /// Brings all of it to the disk, and makes sure that it is still there.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn finish(&self) -> Result<()> {
        self.check()?;
        self.file.sync_all().map_err(|error| Error::write(&self.path, error))
    }

    /// Deletes the file.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn remove(self) -> Result<()> {
        self.check()?;
        fs::remove_file(&self.path).map_err(|error| Error::write(&self.path, error))
    }

    /// Checks that the name still leads to the open file, and that it has what was written and
    /// nothing else.
    fn check(&self) -> Result<()> {
        if !Handle::from_path(&self.path).is_ok_and(|found| found == self.handle) {
            return Err(Error::JournalGone { path: self.path.clone() });
        }
        let found = self.file.metadata().map_err(|error| Error::write(&self.path, error))?.len();
        match found == self.length {
            true => Ok(()),
            false => {
                Err(Error::JournalChanged { path: self.path.clone(), found, length: self.length })
            }
        }
    }
}

/// Locks a file of results, which no other run may be writing.
pub(crate) fn lock(
    path: &Path,
    file: &File,
    failed: impl Fn(std::io::Error) -> Error,
) -> Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Error::JournalBusy { path: path.into() }),
        // Some file systems know no locks.
        Err(TryLockError::Error(error)) if error.kind() != ErrorKind::Unsupported => {
            Err(failed(error))
        }
        _ => Ok(()),
    }
}

struct Usable<'a, T> {
    results: Vec<T>,
    /// The settings and the lines of the results.
    lines: Vec<&'a [u8]>,
    damaged: Vec<&'a [u8]>,
}

fn read<'a, T: DeserializeOwned>(
    path: &Path,
    bytes: &'a [u8],
    settings: &Value,
    accept: Accept,
) -> Result<Usable<'a, T>> {
    let mut kept = Usable { results: Vec::new(), lines: Vec::new(), damaged: Vec::new() };
    for (number, line) in (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
        if number == 1 && !line.starts_with(BEGIN) {
            return Err(Error::NoJournal { path: path.into() });
        }
        // It was being written when the run was killed.
        let Some(whole) = line.strip_suffix(b"\n") else { return Ok(kept) };
        if number == 1 {
            let found = serde_json::from_slice::<Value>(whole)
                .map_err(|_| Error::NoJournal { path: path.into() })?;
            same(path, &found, settings, accept.other_weights)?;
            kept.lines.push(line);
            continue;
        }
        match serde_json::from_slice(whole) {
            Ok(result) => {
                kept.results.push(result);
                kept.lines.push(line);
            }
            Err(_) if accept.damaged => kept.damaged.push(line),
            Err(error) => {
                let message = error.to_string();
                return Err(Error::JournalLine { path: path.into(), line: number, message });
            }
        }
    }
    Ok(kept)
}

/// Adds lines that are damaged to the file beside a journal, behind those that are there, each
/// once.
pub(crate) fn set_aside(path: &Path, damaged: &[impl AsRef<[u8]>]) -> Result<()> {
    let beside = damaged_path(path);
    let mut all = if beside.exists() { files::read(&beside)? } else { Vec::new() };
    for line in damaged.iter().map(AsRef::as_ref) {
        if all.split_inclusive(|byte| *byte == b'\n').all(|other| other != line) {
            all.extend_from_slice(line);
        }
    }
    files::write(&beside, all)
}

/// Whether a journal is at this path that `command` may have written.
///
/// # Errors
/// [`Error::OtherCommand`] for that of another.
pub fn is_of(path: &Path, command: &str) -> Result<bool> {
    let head = files::head(path, FIRST).unwrap_or_default();
    if !head.starts_with(BEGIN) {
        return Ok(false);
    }
    let first = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    // A first line that is cut short says nothing yet.
    serde_json::from_slice::<Value>(first)
        .map_or(Ok(()), |settings| check_command(path, &settings, command))?;
    Ok(true)
}

fn damaged_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".damaged");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Step = (usize, f32);

    /// A place for a journal, in a folder of its own.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        (dir, path)
    }

    fn open_with(path: &Path, seed: u64, accept: Accept) -> Result<(Journal, Vec<Step>)> {
        let settings = serde_json::json!({ "briquette": "0", "seed": seed, "weights": "w" });
        Journal::open(path, &settings, accept)
    }

    fn open(path: &Path, seed: u64) -> Result<(Journal, Vec<Step>)> {
        open_with(path, seed, Accept::default())
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
        journal.finish().unwrap();
        drop(journal);
        let (mut journal, found) = open(&path, 1).unwrap();
        assert_eq!(found.len(), 4);
        let first = fs::read_to_string(&path).unwrap().lines().next().unwrap().to_owned();
        journal.replace(&[(0, 0.25), (1, 0.5)]).unwrap();
        assert!(matches!(open(&path, 1), Err(Error::JournalBusy { .. })));
        journal.push(&(2, 0.75)).unwrap();
        journal.finish().unwrap();
        drop(journal);
        let whole = fs::read_to_string(&path).unwrap();
        assert_eq!(whole, first + "\n[0,0.25]\n[1,0.5]\n[2,0.75]\n");
        let (journal, _) = open(&path, 1).unwrap();
        journal.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_last_line_without_its_end_is_cut_off() {
        let (_dir, path) = place();
        for tail in ["[3,0.", "[3,0.5]", "\0\0\0\0"] {
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
    fn first_lines_without_their_end_begin_anew() {
        let (_dir, path) = place();
        for text in ["", "{\"briquette\":\"0\",\"se"] {
            fs::write(&path, text).unwrap();
            let (_, found) = open(&path, 1).unwrap();
            assert!(found.is_empty());
            let text = fs::read_to_string(&path).unwrap();
            assert_eq!(text, "{\"briquette\":\"0\",\"seed\":1,\"weights\":\"w\"}\n");
        }
    }

    #[test]
    fn what_something_else_wrote_is_left_as_it_is() {
        let (dir, path) = place();
        for text in [
            "a single line",
            "a single line\n",
            "{\"se",
            "{\"seed\":1}\n",
            "\n",
            "{\"briquette\":no\n",
            "one\ntwo\n",
        ] {
            fs::write(&path, text).unwrap();
            let error = open_with(&path, 1, Accept { other_weights: true, damaged: true });
            assert!(matches!(error, Err(Error::NoJournal { .. })), "{text:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert!(matches!(open(dir.path(), 1), Err(Error::NoJournal { .. })));
    }

    #[test]
    fn what_is_no_continuation_is_refused() {
        let (_dir, path) = place();
        begun(&path);
        assert!(matches!(open(&path, 2), Err(Error::RunSettings { .. })));
        let held = open(&path, 1).unwrap();
        assert!(matches!(open(&path, 1), Err(Error::JournalBusy { .. })));
        drop(held);
        assert_eq!(open(&path, 1).unwrap().1.len(), 3);
    }

    #[test]
    fn a_journal_is_of_the_command_that_wrote_it() {
        let (_dir, path) = place();
        assert!(!is_of(&path, "compare").unwrap());
        let compare = serde_json::json!({ "briquette": "0", "command": "compare", "model": "m" });
        let run = serde_json::json!({ "briquette": "0", "models": { "m": {} } });
        for (settings, own) in [(&compare, "compare"), (&run, "run")] {
            fs::write(&path, format!("{settings}\n")).unwrap();
            assert!(is_of(&path, own).unwrap());
            let error = is_of(&path, "needle").unwrap_err().to_string();
            assert!(error.contains(&format!("results of `briquette {own}`")), "{error}");
            assert!(error.contains("not of `briquette needle`"), "{error}");
        }
        let opened = Journal::open::<Step>(&path, &compare, Accept::default());
        assert!(matches!(opened, Err(Error::OtherCommand { .. })), "{opened:?}");
        // An older version did not name the command.
        fs::write(&path, "{\"briquette\":\"0\",\"model\":\"m\"}\n[0,0.5]\n").unwrap();
        assert!(is_of(&path, "compare").unwrap());
        let (_, found) = Journal::open::<Step>(&path, &compare, Accept::default()).unwrap();
        assert_eq!(found, [(0, 0.5)]);
        for (text, known) in
            [("{\"briquette\":\"0\",\"mod", true), ("{\"briq", false), ("a\n", false)]
        {
            fs::write(&path, text).unwrap();
            assert_eq!(is_of(&path, "compare").unwrap(), known, "{text}");
        }
    }

    #[test]
    fn damaged_lines_are_named_and_set_aside() {
        let (_dir, path) = place();
        let steps = begun(&path);
        let text = fs::read_to_string(&path).unwrap();
        let damaged = text.replacen("[1,", "[x,", 1) + "\u{0}\n[4,";
        fs::write(&path, &damaged).unwrap();
        let error = open(&path, 1).unwrap_err();
        assert!(matches!(error, Error::JournalLine { line: 3, .. }), "{error}");
        assert!(error.to_string().contains("--repair"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), damaged);

        let accept = Accept { damaged: true, ..Accept::default() };
        let (mut journal, found) = open_with(&path, 1, accept).unwrap();
        assert_eq!(found, [steps[0], steps[2]]);
        assert!(matches!(open(&path, 1), Err(Error::JournalBusy { .. })));
        journal.push(&steps[1]).unwrap();
        drop(journal);
        assert_eq!(open(&path, 1).unwrap().1, [steps[0], steps[2], steps[1]]);
        let lines: Vec<&str> = damaged.split_inclusive('\n').collect();
        let aside = fs::read_to_string(damaged_path(&path)).unwrap();
        assert_eq!(aside, [lines[2], lines[4]].concat());
    }

    #[test]
    fn a_file_that_is_gone_is_an_error() {
        let (_dir, path) = place();
        for replaced in [false, true] {
            let (mut journal, _) = open(&path, 1).unwrap();
            journal.push(&(0, 0.5)).unwrap();
            fs::remove_file(&path).unwrap();
            if replaced {
                fs::write(&path, "another").unwrap();
            }
            for error in [journal.push(&(1, 0.5)), journal.finish()] {
                assert!(matches!(error, Err(Error::JournalGone { .. })), "{error:?}");
            }
            let _ = fs::remove_file(&path);
        }
    }

    #[test]
    fn a_file_that_something_else_changes_is_an_error() {
        let (_dir, path) = place();
        let (mut journal, _) = open(&path, 1).unwrap();
        journal.push(&(0, 0.5)).unwrap();
        let length = fs::metadata(&path).unwrap().len();
        fs::write(&path, "").unwrap();
        for error in [journal.push(&(1, 0.5)), journal.finish()] {
            match error {
                Err(Error::JournalChanged { found: 0, length: before, .. }) => {
                    assert_eq!(before, length);
                }
                other => panic!("{other:?}"),
            }
        }
        // Nothing was written behind what is gone: the next run begins anew.
        drop(journal);
        let (mut journal, found) = open(&path, 1).unwrap();
        assert!(found.is_empty());
        // A result behind half a line would be lost with it.
        journal.push(&(0, 0.5)).unwrap();
        let mut text = fs::read_to_string(&path).unwrap();
        text += "half a li";
        fs::write(&path, &text).unwrap();
        for error in [journal.push(&(1, 0.5)), journal.finish()] {
            let error = error.unwrap_err().to_string();
            let (more, own) = (text.len(), text.len() - 9);
            assert!(
                error.contains(&format!("has {more} bytes, but {own} were written")),
                "{error}"
            );
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        drop(journal);
        assert_eq!(open(&path, 1).unwrap().1, [(0, 0.5)]);
    }
}
