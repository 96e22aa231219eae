use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::BufReader,
    path::{Path, PathBuf},
};

use serde::{Serialize, Serializer};

use super::{
    folder::{PLAN, RESULTS, read_plan, shards},
    header::Header,
    line::Line,
    results::{Numbered, read_results, same_run},
};
use crate::{
    Error, Result,
    files::{self, Reader, as_text},
    journal::{Accept, lock, set_aside},
    record::Key,
    record_set::{Arrived, RecordSet, same_answers},
};

/// Summary of a merge.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Merged {
    /// The file written.
    #[serde(serialize_with = "as_text")]
    pub file: PathBuf,
    /// The files read.
    #[serde(serialize_with = "as_texts")]
    pub from: Vec<PathBuf>,
    /// Results written.
    pub records: usize,
    /// Results that were there more than once, and equal.
    pub duplicates: usize,
    /// Damaged lines left out, a file and a number each. Those lines are in
    /// `results.jsonl.damaged`.
    pub damaged: Vec<String>,
    /// Units of the plan without a result; `None` where no plan stands beside the results.
    pub missing: Option<Vec<Missing>>,
}

fn as_texts<S: Serializer>(paths: &[PathBuf], to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_seq(paths.iter().map(files::name))
}

/// Units of a plan that have no result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The label of the model.
    pub model: String,
    /// The label of the task.
    pub task: String,
    /// The label of the policy.
    pub policy: String,
    /// Its budget as text.
    pub budget: String,
    /// How many.
    pub units: usize,
}

/// Joins results into `results.jsonl` in the folder `out`: each of `paths` is a file, or the folder
/// of a run with all the files of its shards. Results are ordered as the plan is that stands beside
/// them, or else by key, and stay as they are written, digit by digit. What `results.jsonl` holds
/// already is joined with them.
///
/// # Errors
/// [`Error::RunSettings`] and [`Error::OtherWeights`] for results of different runs,
/// [`Error::MergeConflict`] for results of one unit that differ in more than seconds, or in the
/// metrics of `results.jsonl` and of the shards beside it,
/// [`Error::NoResults`], [`Error::JournalLine`] for damaged lines that are not accepted, and what
/// cannot be read or written.
pub fn merge(paths: &[PathBuf], out: &Path, accept: Accept) -> Result<Merged> {
    let file = out.join(RESULTS);
    let _held = held(&file)?;
    let mut files = sources(paths)?;
    if file.exists()
        && !files.iter().any(|path| same_file::is_same_file(path, &file).unwrap_or(false))
    {
        files.push(file.clone());
    }
    let mut header: Option<Header> = None;
    let mut found: BTreeMap<Key, Found> = BTreeMap::new();
    let mut all = RecordSet::default();
    let (mut duplicates, mut damaged, mut aside) = (0, Vec::new(), Vec::new());
    for path in &files {
        let read = read_results(path, accept.damaged)?;
        header = Some(match header {
            None => read.header,
            Some(first) => {
                same_run(path, &read.header, &first, accept.other_weights)?;
                let date = first.date.clone().min(read.header.date);
                Header { date, ..first }
            }
        });
        for (number, line) in read.damaged {
            damaged.push(format!("{}, line {number}", path.display()));
            aside.push(line);
        }
        for line in read.lines {
            let new = Found { path: path.clone(), line };
            let Line { record, fingerprint } = &new.line.line;
            match (all.add(record, fingerprint), found.get(&record.key)) {
                (Arrived::Other, Some(old)) if !old.replaces(&new) => {
                    return Err(old.conflict(&new));
                }
                (Arrived::Other, Some(_)) | (Arrived::Again, _) => duplicates += 1,
                // That a policy cannot hold, every shard says.
                _ => {
                    found.insert(record.key.clone(), new);
                }
            }
        }
    }
    let Some(header) = header else {
        return Err(Error::NoResults { dir: paths.first().cloned().unwrap_or_default() });
    };
    drop_void(&mut found);

    let plan = plan(&files)?;
    let mut order: Vec<&Key> = Vec::with_capacity(found.len());
    let planned: BTreeSet<&Key> = plan.iter().flatten().collect();
    order.extend(found.keys().filter(|key| key.task.is_empty()));
    order.extend(plan.iter().flatten().filter(|key| found.contains_key(key)));
    order.extend(found.keys().filter(|key| !key.task.is_empty() && !planned.contains(key)));

    // As a journal writes it.
    let header = serde_json::to_value(&header).map_err(|error| Error::write(&file, error))?;
    let mut text = format!("{header}\n");
    for found in order.iter().filter_map(|key| found.get(key)) {
        text += &found.line.text;
        text += "\n";
    }
    fs::create_dir_all(out).map_err(|error| Error::write(out, error))?;
    if !aside.is_empty() {
        set_aside(&file, &aside)?;
    }
    files::write(&file, text)?;
    let missing = plan.as_ref().map(|plan| missing(plan, &found));
    Ok(Merged { records: order.len(), from: files, duplicates, damaged, missing, file })
}

/// The results that are to be replaced, which no run may be writing: it would go on in the file
/// that is no longer there.
fn held(path: &Path) -> Result<Option<BufReader<Reader>>> {
    if !path.exists() {
        return Ok(None);
    }
    let open = files::open(path)?;
    lock(path, open.get_ref().file(), |error| Error::read(path, error))?;
    Ok(Some(open))
}

struct Found {
    path: PathBuf,
    line: Numbered,
}

impl Found {
    /// Whether this stands in the `results.jsonl` beside the file of a shard, which keeps the
    /// scores that its answers had before they were scored by other metrics.
    fn replaces(&self, shard: &Self) -> bool {
        let (whole, part) = (&self.line.line, &shard.line.line);
        self.path.ends_with(RESULTS)
            && self.path.parent() == shard.path.parent()
            && whole.policy() == part.policy()
            && same_answers(&whole.record, &part.record)
    }

    /// Another result of this unit says something else.
    fn conflict(&self, other: &Self) -> Error {
        let text = |Self { path, line: Numbered { number, text, .. } }: &Self| {
            format!("{}, line {number}: {text}", path.display())
        };
        let what = format!("{}: the results", self.line.line.record.key);
        Error::MergeConflict { what, first: text(self), second: text(other) }
    }
}

/// Drops records that a policy cannot hold where it has results: it lacked something then that it
/// has now.
pub(super) fn drop_void<T>(found: &mut BTreeMap<Key, T>) {
    let measured = found.keys().filter(|key| !key.task.is_empty());
    let held: BTreeSet<_> = measured.map(policy_of).collect();
    found.retain(|key, _| !key.task.is_empty() || !held.contains(&policy_of(key)));
}

/// The policy of a unit, by model, label and budget.
fn policy_of(key: &Key) -> [String; 3] {
    [&key.model, &key.policy, &key.budget].map(String::clone)
}

/// Units of a plan that have no result. Of a policy that cannot hold none is expected.
pub(super) fn unmeasured<'a>(plan: &'a [Key], found: &BTreeSet<&Key>) -> Vec<&'a Key> {
    let void = found.iter().filter(|key| key.task.is_empty());
    let void: BTreeSet<_> = void.map(|key| policy_of(key)).collect();
    plan.iter().filter(|key| !found.contains(key) && !void.contains(&policy_of(key))).collect()
}

/// The files of results that paths stand for: of a folder the joined ones and all shards.
pub(super) fn sources(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let mut here = shards(path)?;
        let whole = path.join(RESULTS);
        if whole.exists() {
            here.insert(0, whole);
        }
        if here.is_empty() {
            return Err(Error::NoResults { dir: path.clone() });
        }
        files.extend(here);
    }
    Ok(files)
}

/// The units of the plans beside the files, each once; `None` if no file has one.
fn plan(files: &[PathBuf]) -> Result<Option<Vec<Key>>> {
    let beside: BTreeSet<PathBuf> = files.iter().map(|file| file.with_file_name(PLAN)).collect();
    let (mut keys, mut known, mut any) = (Vec::new(), BTreeSet::new(), false);
    for path in beside.into_iter().filter(|path| path.exists()) {
        any = true;
        keys.extend(read_plan(&path)?.into_iter().filter(|key| known.insert(key.clone())));
    }
    Ok(any.then_some(keys))
}

fn missing(plan: &[Key], found: &BTreeMap<Key, Found>) -> Vec<Missing> {
    let mut counts: BTreeMap<[&String; 4], usize> = BTreeMap::new();
    for Key { model, task, policy, budget, .. } in unmeasured(plan, &found.keys().collect()) {
        *counts.entry([model, task, policy, budget]).or_default() += 1;
    }
    let missing = |(names, units): ([&String; 4], usize)| {
        let [model, task, policy, budget] = names.map(String::clone);
        Missing { model, task, policy, budget, units }
    };
    counts.into_iter().map(missing).collect()
}
