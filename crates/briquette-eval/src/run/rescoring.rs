//! Results of a plan whose metrics have changed since: their answers are scored anew, and nothing
//! is asked again.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use super::{
    line::Line,
    plan::{ModelPlan, Plan, Unit, fingerprint_of},
};
use crate::{
    Error, Result,
    metrics::Metric,
    record::{Answer, Key, Outcome},
    tasks::{Sample, Turn},
};

/// Brings stored results to the metrics of a plan.
#[derive(Debug)]
pub struct Rescoring<'a> {
    units: BTreeMap<&'a Key, (&'a ModelPlan, &'a Unit)>,
    /// Fingerprints that a sample has under other metrics, by its place.
    others: BTreeMap<(String, usize, usize), BTreeSet<String>>,
    /// Results that were scored anew, by task.
    counts: BTreeMap<String, usize>,
}

impl<'a> Rescoring<'a> {
    /// For results of this plan.
    pub fn new(plan: &'a Plan) -> Self {
        let of_model = |model: &'a ModelPlan| model.units.iter().map(move |unit| (model, unit));
        let units = plan.models.iter().flat_map(of_model);
        let units = units.map(|(model, unit)| (&unit.key, (model, unit))).collect();
        Self { units, others: BTreeMap::new(), counts: BTreeMap::new() }
    }

    /// Results that were scored anew, by task.
    pub fn counts(&self) -> &BTreeMap<String, usize> {
        &self.counts
    }

    /// Scores the answers of a line by the plan's metrics, if they were scored by others, and says
    /// whether they were. A line that the plan does not ask for stays as it is. `path` is what
    /// errors call the results.
    ///
    /// # Errors
    /// [`Error::UnitChanged`] for what was made from another policy or sample, and errors of
    /// [`Answer::new`].
    pub fn apply(&mut self, path: &Path, line: &mut Line) -> Result<bool> {
        let Some(&(model, unit)) = self.units.get(&line.record.key) else { return Ok(false) };
        let is_same = line.fingerprint == unit.fingerprint;
        let (Outcome::Answers { answers, .. }, Some(sample)) =
            (&mut line.record.outcome, model.sample(unit))
        else {
            return if is_same { Ok(false) } else { Err(changed(path, &line.fingerprint, unit)) };
        };
        if !is_same && !self.is_scored_otherwise(&line.fingerprint, unit, sample)
            || answers.len() != sample.turns.len()
        {
            return Err(changed(path, &line.fingerprint, unit));
        }
        let scored = |(answer, turn): (&Answer, &Turn)| answer.metrics() == turn.metrics;
        if is_same && answers.iter().zip(&sample.turns).all(scored) {
            return Ok(false);
        }
        for (answer, turn) in answers.iter_mut().zip(&sample.turns) {
            let said = std::mem::take(&mut answer.said);
            *answer = Answer { right_tokens: answer.right_tokens, ..Answer::new(said, turn)? };
        }
        line.fingerprint.clone_from(&unit.fingerprint);
        *self.counts.entry(unit.key.task.clone()).or_default() += 1;
        Ok(true)
    }

    /// Whether a fingerprint is that of the unit but for how its answers are scored.
    fn is_scored_otherwise(&mut self, found: &str, unit: &Unit, sample: &Sample) -> bool {
        let (Some((policy, of_sample)), Some((planned, _))) =
            (found.split_once('-'), unit.fingerprint.split_once('-'))
        else {
            return false;
        };
        let place = (unit.key.model.clone(), unit.group, unit.sample);
        let others = self.others.entry(place).or_insert_with(|| {
            let by = |metric: &Metric| fingerprint_of(sample, |_| *metric);
            Metric::all().iter().map(by).collect()
        });
        policy == planned && others.contains(of_sample)
    }
}

/// The error of results that were made from another policy or sample than a unit.
pub(super) fn changed(path: &Path, found: &str, unit: &Unit) -> Error {
    let policy = |both: &str| both.split_once('-').map(|(policy, _)| policy.to_owned());
    let what = if policy(found) == policy(&unit.fingerprint) {
        format!("task `{}`", unit.key.task)
    } else {
        format!("policy `{}`", unit.key.policy)
    };
    Error::UnitChanged { path: path.into(), what }
}
