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
    fs,
    io::BufRead,
    path::{Path, PathBuf},
};

use briquette_eval::{
    Error as EvalError, files,
    record::{Key, Record},
};
use serde_json::Value;

use crate::{Error, Result};

/// Settings, names and defects of a run's files: all but its records.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The first line of every file.
    pub(super) settings: Value,
    /// The files read, by name.
    pub(super) files: Vec<String>,
    /// Files whose last line is cut short, as while a run goes on.
    pub(super) cut: Vec<String>,
    /// Lines that are no record: the file, the number, and what is wrong.
    pub(super) damaged: Vec<String>,
}

/// Reads the results in a folder, a record at a time: `results.jsonl`, or where there is none the
/// shards `results-I-of-N.jsonl`.
///
/// # Errors
/// [`EvalError::NoResults`], [`Error::NoPage`] for results of another command, [`EvalError::Read`],
/// [`EvalError::ResultLine`] for a first line that says nothing of a run, [`Error::ResultSettings`]
/// for shards of different runs, and those of `each`.
pub(super) fn records(dir: &Path, mut each: impl FnMut(Record) -> Result<()>) -> Result<Source> {
    let paths = files(dir)?;
    let mut source =
        Source { settings: Value::Null, files: Vec::new(), cut: Vec::new(), damaged: Vec::new() };
    for path in &paths {
        let failed = |source| EvalError::Read { path: path.clone(), source };
        let line_error =
            |line, message| EvalError::ResultLine { path: path.clone(), line, message };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut lines = files::open(path)?;
        let mut bytes = Vec::new();
        for number in 1.. {
            bytes.clear();
            if lines.read_until(b'\n', &mut bytes).map_err(failed)? == 0 {
                if number == 1 {
                    return Err(line_error(1, "the file is empty".into()).into());
                }
                break;
            }
            let Some(line) = bytes.strip_suffix(b"\n") else {
                // It was being written.
                if number == 1 {
                    return Err(
                        line_error(1, "the settings of the run are cut short".into()).into()
                    );
                }
                source.cut.push(name.clone());
                break;
            };
            let json = |error: serde_json::Error| line_error(number, error.to_string());
            if number > 1 {
                match serde_json::from_slice(line) {
                    Ok(record) => each(record)?,
                    Err(error) => source.damaged.push(format!("{name}, line {number}: {error}")),
                }
                continue;
            }
            let settings: Value = serde_json::from_slice(line).map_err(json)?;
            // Those of a run name several models, those of a comparison one.
            if settings.get("models").is_none() && settings.get("model").is_some() {
                return Err(Error::NoPage { path: path.clone(), command: "compare" });
            }
            if source.files.is_empty() {
                source.settings = settings;
            } else if undated(&source.settings) != undated(&settings) {
                return Err(Error::ResultSettings {
                    path: path.clone(),
                    first: paths.first().cloned().unwrap_or_default(),
                });
            }
        }
        source.files.push(name);
    }
    Ok(source)
}

/// Shards of one run begin at different times.
fn undated(settings: &Value) -> Value {
    let mut settings = settings.clone();
    if let Some(fields) = settings.as_object_mut() {
        fields.remove("date");
    }
    settings
}

/// Units that a run is to measure, by `plan.jsonl`, one key per line; `None` where there
/// is no plan.
///
/// # Errors
/// [`EvalError::Read`], [`EvalError::ResultLine`].
pub(super) fn plan(dir: &Path) -> Result<Option<Vec<Key>>> {
    let path = dir.join("plan.jsonl");
    if !path.exists() {
        return Ok(None);
    }
    let text = files::read_text(&path)?;
    let key = |(line, text): (usize, &str)| {
        serde_json::from_str(text).map_err(|error| EvalError::ResultLine {
            path: path.clone(),
            line,
            message: error.to_string(),
        })
    };
    Ok(Some((1..).zip(text.lines()).map(key).collect::<briquette_eval::Result<_>>()?))
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let whole = dir.join("results.jsonl");
    if whole.exists() {
        return Ok(vec![whole]);
    }
    let failed = |source| EvalError::Read { path: dir.into(), source };
    let mut shards = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if let Some(shard) = path.file_name().and_then(|name| shard(name.to_str()?)) {
            shards.push((shard, path));
        }
    }
    shards.sort();
    if shards.is_empty() {
        return Err(no_results(dir));
    }
    Ok(shards.into_iter().map(|(_, path)| path).collect())
}

/// A folder of another command's results is called by its name.
fn no_results(dir: &Path) -> Error {
    let commands = ["needle", "perplexity", "fidelity", "mask-heads"];
    let journal = |command: &&str| dir.join(format!("{command}.jsonl"));
    match commands.iter().find(|command| journal(command).is_file()) {
        Some(command) => Error::NoPage { path: journal(command), command },
        None => EvalError::NoResults { dir: dir.into() }.into(),
    }
}

/// Which shard of how many: `results-2-of-8.jsonl`.
fn shard(name: &str) -> Option<(usize, usize)> {
    let middle = name.strip_prefix("results-")?.strip_suffix(".jsonl")?;
    let (shard, of) = middle.split_once("-of-")?;
    Some((shard.parse().ok()?, of.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"model":"m","policy":"full","budget":"-","seed":0,"task":"t","sample":"0","kind":"unavailable","reason":"r","seconds":1.0}"#;

    fn count(dir: &Path) -> Result<(usize, Source)> {
        let mut count = 0;
        let source = records(dir, |_| {
            count += 1;
            Ok(())
        })?;
        Ok((count, source))
    }

    #[test]
    fn a_whole_file_goes_before_shards_and_a_cut_line_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
        assert!(matches!(count(dir.path()), Err(Error::Eval(EvalError::NoResults { .. }))));
        write("results-10-of-10.jsonl", format!("{{\"a\":1}}\n{RECORD}\n"));
        write("results-2-of-10.jsonl", format!("{{\"a\":1}}\n{RECORD}\n{RECORD}\n{{\"mod"));
        write("results-of.jsonl", "no".into());
        let (records, source) = count(dir.path()).unwrap();
        assert_eq!(records, 3);
        assert_eq!(source.files, ["results-2-of-10.jsonl", "results-10-of-10.jsonl"]);
        assert_eq!(source.cut, ["results-2-of-10.jsonl"]);
        write("results.jsonl", format!("{{\"a\":2}}\n{RECORD}\n"));
        let (records, source) = count(dir.path()).unwrap();
        assert_eq!((records, source.settings["a"].as_u64()), (1, Some(2)));
    }

    #[test]
    fn results_of_other_commands_are_called_by_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let found = || match count(dir.path()).unwrap_err() {
            Error::NoPage { path, command } => (path, command),
            error => panic!("{error}"),
        };
        for command in ["mask-heads", "fidelity", "perplexity", "needle"] {
            let path = dir.path().join(format!("{command}.jsonl"));
            fs::write(&path, "{\"briquette\":\"0.1.0\",\"model\":\"m\"}\n").unwrap();
            assert_eq!(found(), (path, command));
        }
        let path = dir.path().join("results.jsonl");
        let line = r#"{"policy":"a","task":"needle","answer":"b"}"#;
        fs::write(&path, format!("{{\"briquette\":\"0.1.0\",\"model\":\"m\"}}\n{line}\n")).unwrap();
        assert_eq!(found(), (path, "compare"));
    }

    #[test]
    fn what_is_no_result_is_named_by_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
        write("results.jsonl", format!("{{}}\n{RECORD}\n{{\"model\":1}}\n{RECORD}\n"));
        let (records, source) = count(dir.path()).unwrap();
        assert_eq!((records, source.damaged.len()), (2, 1));
        assert!(source.damaged[0].starts_with("results.jsonl, line 3: "), "{source:?}");
        for text in ["", "{\"a\"", "no\n"] {
            write("results.jsonl", text.into());
            assert!(
                matches!(
                    count(dir.path()),
                    Err(Error::Eval(EvalError::ResultLine { line: 1, .. }))
                ),
                "{text:?}"
            );
        }
        fs::remove_file(dir.path().join("results.jsonl")).unwrap();
        write("results-1-of-2.jsonl", format!("{{\"date\":1}}\n{RECORD}\n"));
        write("results-2-of-2.jsonl", format!("{{\"date\":2}}\n{RECORD}\n"));
        assert_eq!(count(dir.path()).unwrap().0, 2);
        write("results-2-of-2.jsonl", format!("{{\"a\":1}}\n{RECORD}\n"));
        assert!(matches!(count(dir.path()), Err(Error::ResultSettings { .. })));
    }
}
