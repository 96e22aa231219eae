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

use std::{
    collections::BTreeMap,
    io::BufRead,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::Value;

use super::{
    folder::{RESULTS, check_merged},
    found::Found,
    header::Header,
    line::Line,
    plan::Unit,
    rescoring::{Rescoring, changed},
    shard::Shard,
};
use crate::{
    Error, Result, files,
    journal::{Accept, Journal, RUN, check_command, same},
    record::Key,
    record_set::{Arrived, RecordSet},
};

/// The results of a run, or of one shard of it: a file that grows by a line a unit.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    journal: Journal,
    found: BTreeMap<Key, (String, Found)>,
    all: RecordSet,
    scored_anew: BTreeMap<String, usize>,
}

impl Results {
    /// Opens the results in the folder `dir`, or begins them. A shard also knows what
    /// `results.jsonl` holds, if it is there, and does not do it again. Answers that were scored by
    /// other metrics are scored anew, in the file too.
    ///
    /// # Errors
    /// [`Error::ShardsUnmerged`] for shards where all of a run is asked for,
    /// [`Error::MergeConflict`] for two results of one unit that differ, what [`Journal::open`] and
    /// [`Rescoring::apply`] refuse, and [`Error::ScoredOtherwise`] for answers in the
    /// `results.jsonl` beside a shard.
    pub fn open(
        dir: &Path,
        header: &Header,
        shard: Option<Shard>,
        accept: Accept,
        rescoring: &mut Rescoring<'_>,
    ) -> Result<Self> {
        let whole = dir.join(RESULTS);
        let path = shard.map_or_else(|| whole.clone(), |shard| dir.join(shard.file_name()));
        let mut taken = Vec::new();
        if shard.is_none() {
            check_merged(dir)?;
        }
        if shard.is_some() && whole.exists() {
            let merged = read_results(&whole, accept.damaged)?;
            same_run(&whole, &merged.header, header, accept.other_weights)?;
            for mut line in merged.lines.into_iter().map(|one| one.line) {
                if rescoring.apply(&whole, &mut line)? {
                    return Err(Error::ScoredOtherwise { path: whole, task: line.record.key.task });
                }
                taken.push(line);
            }
        }
        let (mut journal, mut lines) = Journal::open::<Line>(&path, header, accept)?;
        let mut is_replaced = false;
        for line in &mut lines {
            is_replaced |= rescoring.apply(&path, line)?;
        }
        if is_replaced {
            journal.replace(&lines)?;
        }
        let (found, all) = (BTreeMap::new(), RecordSet::default());
        let scored_anew = rescoring.counts().clone();
        let mut results = Self { path, journal, found, all, scored_anew };
        taken.iter().chain(&lines).try_for_each(|line| results.take(line))?;
        Ok(results)
    }

    fn take(&mut self, line: &Line) -> Result<()> {
        match self.all.add(&line.record, &line.fingerprint) {
            Arrived::Again => return Ok(()),
            Arrived::First | Arrived::Newer => {}
            Arrived::Other => {
                let first = format!("{}: an earlier line", self.path.display());
                let second = serde_json::to_string(line).unwrap_or_default();
                let what = format!("{}: the results", line.record.key);
                return Err(Error::MergeConflict { what, first, second });
            }
        }
        let Line { record, fingerprint } = line;
        self.found.insert(record.key.clone(), (fingerprint.clone(), Found::of(record)));
        Ok(())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many were scored anew when they were opened, since the metrics of their task had
    /// changed, by task.
    pub fn scored_anew(&self) -> &BTreeMap<String, usize> {
        &self.scored_anew
    }

    /// Whether they hold a unit.
    pub fn contains(&self, key: &Key) -> bool {
        self.found.contains_key(key)
    }

    pub(super) fn found(&self, key: &Key) -> Option<&Found> {
        self.found.get(key).map(|(_, found)| found)
    }

    /// Refuses results of a unit that were made from another policy or sample.
    ///
    /// # Errors
    /// [`Error::UnitChanged`].
    pub fn check(&self, unit: &Unit) -> Result<()> {
        match self.found.get(&unit.key) {
            Some((found, _)) if *found != unit.fingerprint => Err(changed(&self.path, found, unit)),
            _ => Ok(()),
        }
    }

    /// Adds a line.
    ///
    /// # Errors
    /// As [`Journal::push`].
    pub fn push(&mut self, line: &Line) -> Result<()> {
        self.journal.push(line)?;
        self.take(line)
    }

    /// Brings all of them to the disk, and makes sure that they are still there.
    ///
    /// # Errors
    /// As [`Journal::finish`].
    pub fn finish(&self) -> Result<()> {
        self.journal.finish()
    }

    /// Policies that cannot hold, with the reasons.
    pub(super) fn unavailable(&self) -> impl Iterator<Item = (&Key, &str)> {
        self.found.iter().filter_map(|(key, (_, found))| match found {
            Found::Unavailable { reason } => Some((key, reason.as_str())),
            Found::Numbers(_) => None,
        })
    }
}

pub(super) fn same_run(
    path: &Path,
    found: &Header,
    given: &Header,
    other_weights: bool,
) -> Result<()> {
    let value = |header| serde_json::to_value(header).map_err(|error| Error::write(path, error));
    same(path, &value(found)?, &value(given)?, other_weights)
}

/// A file of results as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    /// Its first line.
    pub header: Header,
    /// The others.
    pub lines: Vec<Numbered>,
    /// Those that are damaged, where they are accepted: number and bytes.
    pub damaged: Vec<(usize, Vec<u8>)>,
}

impl Read {
    /// Refuses the results of another run than the one with this header. `path` is what errors
    /// call them.
    ///
    /// # Errors
    /// [`Error::RunSettings`], [`Error::OtherWeights`].
    pub fn check(&self, path: &Path, header: &Header, other_weights: bool) -> Result<()> {
        same_run(path, &self.header, header, other_weights)
    }
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbered {
    /// Its number, from 1.
    pub number: usize,
    /// Its content.
    pub line: Line,
    /// As it is written, since a number that is read and written again may end in another digit.
    pub text: String,
}

/// Reads a file of results, without continuing it. A last line without its end is left out: a run
/// may be writing it.
///
/// # Errors
/// [`Error::Read`], [`Error::OtherCommand`] for the results of another command,
/// [`Error::NoJournal`] for a file that begins with no header of a run, and [`Error::JournalLine`]
/// for a line that is no result, unless `damaged` lines are accepted.
pub fn read_results(path: &Path, damaged: bool) -> Result<Read> {
    let failed = |source| Error::read(path, source);
    let mut file = files::open(path)?;
    let mut bytes = Vec::new();
    file.read_until(b'\n', &mut bytes).map_err(failed)?;
    let settings: Option<Value> =
        bytes.strip_suffix(b"\n").and_then(|line| serde_json::from_slice(line).ok());
    let settings = settings.unwrap_or_default();
    check_command(path, &settings, RUN)?;
    let header =
        Header::deserialize(settings).map_err(|_| Error::NoJournal { path: path.into() })?;
    let mut read = Read { header, lines: Vec::new(), damaged: Vec::new() };
    for number in 2.. {
        bytes.clear();
        file.read_until(b'\n', &mut bytes).map_err(failed)?;
        let Some(whole) = bytes.strip_suffix(b"\n") else { break };
        let text = std::str::from_utf8(whole).map_err(|error| error.to_string());
        let line = text.and_then(|text| {
            let line = serde_json::from_str(text).map_err(|error| error.to_string())?;
            Ok(Numbered { number, line, text: text.to_owned() })
        });
        match line {
            Ok(line) => read.lines.push(line),
            Err(_) if damaged => read.damaged.push((number, bytes.clone())),
            Err(message) => {
                return Err(Error::JournalLine { path: path.into(), line: number, message });
            }
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn damaged_lines_are_named_or_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.jsonl");
        let header = Header::new("n".into(), "flex", BTreeMap::new());
        let header = serde_json::to_string(&header).unwrap();
        let line = r#"{"model":"m","policy":"p","budget":"-","seed":0,"task":"","sample":"","kind":"unavailable","reason":"r","seconds":0.1,"of":"-"}"#;
        fs::write(&path, format!("{header}\n{line}\nno\n{line}\n{{\"mod")).unwrap();
        let error = read_results(&path, false).unwrap_err();
        assert!(matches!(error, Error::JournalLine { line: 3, .. }), "{error}");
        let read = read_results(&path, true).unwrap();
        let numbers: Vec<usize> = read.lines.iter().map(|line| line.number).collect();
        assert_eq!((numbers, read.damaged), (vec![2, 4], vec![(3, b"no\n".to_vec())]));
        assert_eq!(read.lines[0].text, line);
        for text in ["", "{\"a\":1}\n", "no\n", "{\"bri"] {
            fs::write(&path, text).unwrap();
            assert!(matches!(read_results(&path, true), Err(Error::NoJournal { .. })), "{text}");
        }
    }
}
