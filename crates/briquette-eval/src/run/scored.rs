//! The answers of a run scored by other metrics, without asking again.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use super::{
    folder::{PLAN, RESULTS, read_plan, write_plan},
    found::{Found, Measure},
    header::Header,
    line::Line,
    merge::{drop_void, sources, unmeasured},
    results::{Numbered, read_results, same_run},
    summary::{Summary, Unavailable},
};
use crate::{
    Error, Result, files,
    metrics::Metrics,
    record::{Answer, Key, Outcome},
    record_set::{Arrived, RecordSet},
};

/// The results of a run, with scores by metrics of one's choice.
#[derive(Clone, Debug)]
pub struct ScoredRun {
    header: Header,
    /// In the order of the plan, then by key.
    lines: Vec<Line>,
    /// The keys of all units; `None` where no plan stands beside the results.
    plan: Option<Vec<Key>>,
    without_answers: Vec<String>,
    damaged: Vec<String>,
}

impl ScoredRun {
    /// Reads the results of a run, a folder with all files of its shards or a file, and scores
    /// every answer by these metrics. Texts and answers right and wrong stand in the results, so
    /// neither the model nor the data of the tasks are needed. `damaged` lines are left out, or
    /// refused.
    ///
    /// # Errors
    /// What [`read_results`] refuses, [`Error::NoResults`], [`Error::RunSettings`] and
    /// [`Error::OtherWeights`] for shards of different runs, [`Error::MergeConflict`] for results
    /// of one unit that differ, [`Error::NoAnswers`], [`Error::KeptWithoutClasses`], and
    /// [`Error::Unit`] with the reason why an answer has no score.
    pub fn read(path: &Path, metrics: &Metrics, damaged: bool) -> Result<Self> {
        let mut header: Option<Header> = None;
        let mut found: BTreeMap<Key, Line> = BTreeMap::new();
        let (mut all, mut left_out, mut beside) = (RecordSet::default(), Vec::new(), Vec::new());
        for file in sources(&[path.to_owned()])? {
            let read = read_results(&file, damaged)?;
            header = Some(match header {
                None => read.header,
                Some(first) => {
                    same_run(&file, &read.header, &first, false)?;
                    first
                }
            });
            left_out.extend(
                read.damaged.iter().map(|(line, _)| format!("{}, line {line}", file.display())),
            );
            beside.push(file.with_file_name(PLAN));
            for Numbered { number, mut line, text } in read.lines {
                let place = || format!("{}, line {number}: {text}", file.display());
                score(&file, &mut line, metrics)?;
                let key = line.record.key.clone();
                match all.add(&line.record, line.policy()) {
                    Arrived::Again => continue,
                    Arrived::First | Arrived::Newer => {}
                    Arrived::Other => {
                        let first = found.get(&key).map(serde_json::to_string);
                        let first = first.and_then(|first| first.ok()).unwrap_or_default();
                        let what = format!("{key}: the results");
                        return Err(Error::MergeConflict { what, first, second: place() });
                    }
                }
                found.insert(key, line);
            }
        }
        let Some(header) = header else { return Err(Error::NoResults { dir: path.into() }) };
        drop_void(&mut found);
        let is_answered = |line: &Line| matches!(line.record.outcome, Outcome::Answers { .. });
        if !found.values().any(is_answered) {
            return Err(Error::NoAnswers { path: path.into() });
        }
        let others = found.iter().filter(|(key, line)| !is_answered(line) && !key.task.is_empty());
        let without: BTreeSet<&String> = others.map(|(key, _)| &key.task).collect();
        let without_answers = without.into_iter().cloned().collect();

        let plan = beside.iter().find(|path| path.is_file()).map(|path| read_plan(path));
        let plan = plan.transpose()?;
        let mut lines = Vec::with_capacity(found.len());
        for key in plan.iter().flatten() {
            lines.extend(found.remove(key));
        }
        lines.extend(found.into_values());
        Ok(Self { header, lines, plan, without_answers, damaged: left_out })
    }

    /// The name of the run.
    pub fn name(&self) -> &str {
        &self.header.name
    }

    /// Tasks that ask nothing, by label.
    pub fn without_answers(&self) -> &[String] {
        &self.without_answers
    }

    /// Damaged lines that were left out: file and number.
    pub fn damaged(&self) -> &[String] {
        &self.damaged
    }

    /// Units of the plan that have no result.
    pub fn missing(&self) -> usize {
        let found = self.lines.iter().map(|line| &line.record.key).collect();
        self.plan.as_ref().map_or(0, |plan| unmeasured(plan, &found).len())
    }

    /// The scores by task, policy and budget.
    pub fn summary(&self) -> Summary {
        let mut lengths: BTreeMap<(&str, &str), BTreeSet<u64>> = BTreeMap::new();
        for line in &self.lines {
            let Key { model, task, .. } = &line.record.key;
            lengths.entry((model, task)).or_default().extend(length(line));
        }
        let result = |line: &Line| {
            let key = line.record.key.clone();
            let several = lengths.get(&(&key.model, &key.task)).is_some_and(|all| all.len() > 1);
            let length = length(line).filter(|_| several);
            (key, length, Found::of(&line.record))
        };
        let results: Vec<(Key, Option<u64>, Found)> = self.lines.iter().map(result).collect();
        let mut summary = Summary::of_results(&results);
        summary.rows.retain(|row| row.measure == Measure::Score);
        for (key, _, found) in &results {
            if let Found::Unavailable { reason } = found {
                let row = Unavailable::new(key, reason);
                if !summary.unavailable.contains(&row) {
                    summary.unavailable.push(row);
                }
            }
        }
        summary
    }

    /// Writes all results of the run, with these scores, into the folder `dir`, for a page: as
    /// `results.jsonl`, with the `plan.jsonl` of the run. Returns the path of the results.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn write(&self, dir: &Path) -> Result<PathBuf> {
        let path = dir.join(RESULTS);
        let failed = |error| Error::write(&path, error);
        // As a journal writes it.
        let header = serde_json::to_value(&self.header).map_err(failed)?;
        let mut text = format!("{header}\n");
        for line in &self.lines {
            text += &serde_json::to_string(line).map_err(failed)?;
            text.push('\n');
        }
        std::fs::create_dir_all(dir).map_err(|error| Error::write(dir, error))?;
        files::write(&path, text)?;
        if let Some(plan) = &self.plan {
            write_plan(dir, plan.iter())?;
        }
        Ok(path)
    }
}

/// Tokens that a sample was made for, where it says so.
fn length(line: &Line) -> Option<u64> {
    match &line.record.outcome {
        Outcome::Answers { axes, .. } => axes.get("length").copied(),
        _ => None,
    }
}

fn score(path: &Path, line: &mut Line, metrics: &Metrics) -> Result<()> {
    let key = &line.record.key;
    let Outcome::Answers { answers, .. } = &mut line.record.outcome else { return Ok(()) };
    let scored = answers.iter().map(|answer: &Answer| answer.clone().scored_by(metrics));
    *answers = scored.collect::<Result<_>>().map_err(|error| match error {
        Error::NoClasses { metric } => {
            Error::KeptWithoutClasses { path: path.into(), task: key.task.clone(), metric }
        }
        error => Error::Unit { unit: key.to_string(), source: Box::new(error) },
    })?;
    Ok(())
}
