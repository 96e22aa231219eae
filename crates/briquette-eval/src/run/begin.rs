use std::path::Path;

use super::{
    file::RunFile,
    folder::{RUN_FILE, check_merged, check_own, write_plan},
    plan::Plan,
    rescoring::Rescoring,
    results::Results,
    shard::Shard,
};
use crate::{Result, files, journal::Accept};

/// Opens the results of a plan in the folder `dir`, or begins them, and keeps there the run file as
/// `run.toml` and the keys of all units as `plan.jsonl`, for [`merge`](super::merge()). Answers
/// that were scored by other metrics are [scored anew](Results::scored_anew).
///
/// # Errors
/// Errors of [`Results::open`], [`Error::NoJournal`](crate::Error::NoJournal) for files of these
/// names that no run wrote, [`Error::UnitChanged`](crate::Error::UnitChanged), and
/// [`Error::Write`](crate::Error::Write).
pub fn begin(
    dir: &Path,
    file: &RunFile,
    plan: &Plan,
    device: &str,
    shard: Option<Shard>,
    accept: Accept,
) -> Result<Results> {
    check_folder(dir, file, shard)?;
    let mut rescoring = Rescoring::new(plan);
    let results = Results::open(dir, &plan.header(device), shard, accept, &mut rescoring)?;
    files::write(&dir.join(RUN_FILE), file.text())?;
    write_plan(dir, plan.units().map(|unit| &unit.key))?;
    Ok(results)
}

/// Whether results of a run file, or of a shard of it, can be kept in the folder `dir`. Nothing is
/// written.
///
/// # Errors
/// [`Error::NoJournal`](crate::Error::NoJournal) for files of a run's names that no run wrote, and
/// [`Error::ShardsUnmerged`](crate::Error::ShardsUnmerged) for results of shards where the whole
/// run is wanted.
pub fn check_folder(dir: &Path, file: &RunFile, shard: Option<Shard>) -> Result<()> {
    check_own(dir, file.text())?;
    match shard {
        None => check_merged(dir),
        Some(_) => Ok(()),
    }
}
