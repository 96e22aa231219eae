//! The files in the folder of a run.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::shard::Shard;
use crate::{Error, Result, files, record::Key};

/// The name of the results in the folder of a run that is not cut into shards.
pub(super) const RESULTS: &str = "results.jsonl";

/// The keys of all units of a plan, a line each.
pub(super) const PLAN: &str = "plan.jsonl";

/// A copy of the run file.
pub(super) const RUN_FILE: &str = "run.toml";

/// The results of shards in a folder, in order.
pub(super) fn shards(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = match files::list(dir) {
        Err(Error::Read { source, .. }) if source.kind() == ErrorKind::NotFound => Vec::new(),
        files => files?,
    };
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let shard = name.strip_prefix("results-").and_then(|name| name.strip_suffix(".jsonl"));
        let shard = shard.and_then(|shard| shard.replacen("-of-", "/", 1).parse::<Shard>().ok());
        shard.is_some_and(|shard| shard.file_name() == name)
    });
    Ok(files)
}

/// Refuses a folder that holds files under the names of a run's, but no results of one.
pub(super) fn check_own(dir: &Path, run_file: &str) -> Result<()> {
    if dir.join(RESULTS).exists() || !shards(dir)?.is_empty() {
        return Ok(());
    }
    let copy = dir.join(RUN_FILE);
    let foreign = |path: PathBuf| Err(Error::NoJournal { path });
    if copy.exists() && files::read(&copy)? != run_file.as_bytes() {
        return foreign(copy);
    }
    let plan = dir.join(PLAN);
    match plan.exists().then(|| read_plan(&plan)) {
        Some(Err(Error::ResultLine { .. })) => foreign(plan),
        Some(Err(error)) => Err(error),
        _ => Ok(()),
    }
}

/// Refuses a folder that holds results of shards, and none of the whole run.
pub(super) fn check_merged(dir: &Path) -> Result<()> {
    match shards(dir)?.len() {
        files if files > 0 && !dir.join(RESULTS).exists() => {
            Err(Error::ShardsUnmerged { dir: dir.into(), files })
        }
        _ => Ok(()),
    }
}

pub(super) fn write_plan<'a>(dir: &Path, keys: impl Iterator<Item = &'a Key>) -> Result<()> {
    let path = dir.join(PLAN);
    let mut text = String::new();
    for key in keys {
        text += &serde_json::to_string(key).map_err(|error| Error::write(&path, error))?;
        text.push('\n');
    }
    files::write(&path, text)
}

pub(super) fn read_plan(path: &Path) -> Result<Vec<Key>> {
    let text = files::read_text(path)?;
    let key = |(line, text): (usize, &str)| {
        serde_json::from_str(text).map_err(|error| Error::ResultLine {
            path: path.into(),
            line,
            message: error.to_string(),
        })
    };
    (1..).zip(text.lines()).map(key).collect()
}
