use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    candidate::FULL,
    found::{Found, Measure, Numbers},
    plan::{ModelPlan, Plan, PlannedPolicy},
    results::Results,
    weak::weak,
};
use crate::{
    metrics::Metric,
    record::{CacheBytes, Key},
    stats::{Estimate, Mean},
    tasks::Question,
    wall_seconds,
};

/// Means of a run by task, policy and budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// In the order of the plan.
    pub rows: Vec<Row>,
    /// Policies that cannot hold.
    pub unavailable: Vec<Unavailable>,
    /// Seconds in which something of it was measured, without pauses between runs; `None` where
    /// results of older versions do not say when they ended.
    pub wall_seconds: Option<f64>,
}

/// A policy that cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unavailable {
    /// The label of the model.
    pub model: String,
    /// The label of the policy.
    pub policy: String,
    /// Its budget as text.
    pub budget: String,
    /// Why it is unavailable.
    pub reason: String,
}

impl Unavailable {
    pub(super) fn new(key: &Key, reason: &str) -> Self {
        let Key { model, policy, budget, .. } = key.clone();
        Self { model, policy, budget, reason: reason.to_owned() }
    }
}

struct Sample<'a> {
    found: &'a Numbers,
    /// The first number of the full cache on the same sample.
    full: Option<f64>,
}

/// A task under a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The label of the model.
    pub model: String,
    /// The label of the task.
    pub task: String,
    /// Tokens of a sample, where a task has samples of several lengths: each is a row of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// When the question came.
    pub ask: Option<Question>,
    /// The label of the policy.
    pub policy: String,
    /// Its budget as text.
    pub budget: String,
    /// The averaged number.
    pub measure: Measure,
    /// The metric of a score; absent for other numbers, and where samples have different ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<Metric>,
    /// The mean over samples, and its standard error.
    pub mean: Mean,
    /// The ends of the 95 % interval: Wilson's for scores that are 0 or 1, Student's for others; of
    /// one of these there is none.
    pub interval: Option<[f64; 2]>,
    /// The number above that of the full cache, in pairs on the same samples; `None` if the full
    /// cache was not measured.
    pub over_full: Option<Mean>,
    /// Further numbers of the same samples.
    pub beside: BTreeMap<Measure, Estimate>,
    /// Bytes of what is kept over bytes of a full cache, of all samples together; with the spare
    /// room where that is not known apart.
    pub held_of_full: f64,
    /// Bytes of free room for tokens to come over bytes of a full cache; `None` in results of older
    /// versions.
    pub spare_of_full: Option<f64>,
    /// Seconds of all samples, each as if it had been alone.
    pub seconds: f64,
}

impl Summary {
    /// Means over the units of a plan that have results.
    pub fn new(plan: &Plan, results: &Results) -> Self {
        let lengths: Vec<_> = plan.models.iter().map(ModelPlan::lengths).collect();
        let units = plan.models.iter().zip(&lengths).flat_map(|(model, lengths)| {
            model.units.iter().map(|unit| (&unit.key, lengths.of(unit)))
        });
        let (rows, wall_seconds) = means(units, |key| results.found(key));
        let mut unavailable: Vec<Unavailable> =
            plan.unavailable().map(|(key, reason)| Unavailable::new(key, reason)).collect();
        for (key, reason) in results.unavailable() {
            let row = Unavailable::new(key, reason);
            let planned = plan.models.iter().any(|model| {
                let name = |entry: &PlannedPolicy| {
                    (&model.opened.label, &entry.entry.label, &entry.budget)
                        == (&key.model, &key.policy, &key.budget)
                };
                model.entries.iter().any(name)
            });
            let measured = rows.iter().any(|row| {
                (&row.model, &row.policy, &row.budget) == (&key.model, &key.policy, &key.budget)
            });
            if planned && !measured && !unavailable.contains(&row) {
                unavailable.push(row);
            }
        }
        Self { rows, unavailable, wall_seconds }
    }

    /// Means over results in this order, each with its length where its task has several.
    pub(super) fn of_results(results: &[(Key, Option<u64>, Found)]) -> Self {
        let found: BTreeMap<&Key, &Found> =
            results.iter().map(|(key, _, found)| (key, found)).collect();
        let units = results.iter().map(|(key, length, _)| (key, *length));
        let (rows, wall_seconds) = means(units, |key| found.get(key).copied());
        Self { rows, unavailable: Vec::new(), wall_seconds }
    }

    /// A warning for each task that the model fails on with everything kept: to be shown before
    /// anything else.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = Vec::new();
        let of_full = |row: &&Row| row.policy == FULL && row.measure == Measure::Score;
        for row in self.rows.iter().filter(of_full) {
            let said = weak(&row.task, row.mean.mean, row.mean.count);
            warnings.extend(said.filter(|said| !warnings.contains(said)));
        }
        warnings
    }
}

/// The means of units that have results, tasks together rather than samples as they run, and the
/// seconds in which they were measured.
fn means<'a>(
    units: impl Iterator<Item = (&'a Key, Option<u64>)>,
    found: impl Fn(&Key) -> Option<&'a Found>,
) -> (Vec<Row>, Option<f64>) {
    type Group = (Key, Option<u64>, Measure);
    let mut groups: Vec<(Group, Vec<Sample<'_>>)> = Vec::new();
    let mut places = BTreeMap::new();
    let (mut models, mut tasks, mut spans) = (Vec::new(), Vec::new(), Vec::new());
    for (unit, length) in units {
        if !models.contains(&&unit.model) {
            models.push(&unit.model);
        }
        if !tasks.contains(&&unit.task) {
            tasks.push(&unit.task);
        }
        let Some(Found::Numbers(own)) = found(unit) else { continue };
        let measure = own.first.0;
        let full = Key { policy: FULL.into(), budget: "-".into(), ..unit.clone() };
        let full = match found(&full) {
            Some(Found::Numbers(full)) if full.first.0 == measure => Some(full.first.1),
            _ => None,
        };
        let key = Key { seed: 0, sample: String::new(), ..unit.clone() };
        let group = (key, length, measure);
        let place = *places.entry(group.clone()).or_insert_with(|| {
            groups.push((group, Vec::new()));
            groups.len() - 1
        });
        groups[place].1.push(Sample { found: own, full });
        spans.push(own.span);
    }
    groups.sort_by_key(|((key, length, _), _)| {
        let model = models.iter().position(|model| **model == key.model);
        let task = tasks.iter().position(|task| **task == key.task);
        (model, task, *length, key.ask)
    });
    let row = |((key, length, measure), samples): (Group, Vec<Sample<'_>>)| Row {
        length,
        ..Row::new(key, measure, &samples)
    };
    (groups.into_iter().map(row).collect(), wall_seconds(spans))
}

impl Row {
    fn new(key: Key, measure: Measure, samples: &[Sample<'_>]) -> Self {
        let found = || samples.iter().map(|sample| sample.found);
        let values: Vec<f64> = found().map(|found| found.first.1).collect();
        let over = samples.iter().map(|sample| Some(sample.found.first.1 - sample.full?));
        let over: Option<Vec<f64>> = over.collect();
        let mut beside: BTreeMap<Measure, Vec<f64>> = BTreeMap::new();
        for (measure, value) in found().flat_map(|found| &found.beside) {
            beside.entry(*measure).or_default().push(*value);
        }
        let bytes = |of: &dyn Fn(&CacheBytes) -> usize| -> f64 {
            found().map(|found| of(&found.held) as f64).sum()
        };
        let spare = found().map(|found| Some(found.held.spare? as f64)).sum::<Option<f64>>();
        let full = bytes(&|held| held.full).max(1.0);
        let lowest = found().map(|found| found.lowest).fold(0.0, f64::min);
        let metric = found().next().and_then(|found| found.metric);
        let metric = metric.filter(|_| found().all(|found| found.metric == metric));
        Self {
            model: key.model,
            task: key.task,
            length: None,
            ask: key.ask,
            policy: key.policy,
            budget: key.budget,
            measure,
            metric,
            mean: Mean::of(&values),
            interval: estimate(measure, lowest, &values).interval,
            over_full: over.map(|over| Mean::of(&over)),
            beside: beside.iter().map(|(of, values)| (*of, estimate(*of, 0.0, values))).collect(),
            held_of_full: (bytes(&|held| held.bytes) - spare.unwrap_or(0.0)) / full,
            spare_of_full: spare.map(|spare| spare / full),
            seconds: found().map(|found| found.seconds).sum(),
        }
    }
}

/// The mean of numbers of one kind, with an interval that holds none which cannot be. `lowest` is
/// the lowest that a score can be.
fn estimate(measure: Measure, lowest: f64, values: &[f64]) -> Estimate {
    match measure {
        Measure::Score | Measure::RightTokens => Estimate::of_scores_from(lowest, values),
        Measure::By(metric) => Estimate::of_scores_from(*metric.range().start(), values),
        Measure::Agreement | Measure::Overlap => Estimate::of(values).within(0.0, 1.0),
        Measure::Kl | Measure::OutputError => Estimate::of(values).within(0.0, f64::INFINITY),
        Measure::Nats => Estimate::of(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::plan::no_sample;

    fn row(measure: Measure, values: &[f64]) -> Row {
        let held = CacheBytes { bytes: 35, spare: Some(10), full: 100 };
        let numbers = |value: &f64| Numbers {
            first: (measure, *value),
            beside: Vec::new(),
            metric: None,
            lowest: 0.0,
            held,
            seconds: 0.5,
            span: None,
        };
        let found: Vec<Numbers> = values.iter().map(numbers).collect();
        let samples: Vec<Sample<'_>> =
            found.iter().map(|found| Sample { found, full: Some(0.5) }).collect();
        let key = Key { task: "t".into(), ..no_sample("m", "p", "64", None) };
        Row::new(key, measure, &samples)
    }

    #[test]
    fn no_interval_of_a_divergence_begins_below_zero() {
        let [low, high] = row(Measure::Kl, &[0.001, 0.9]).interval.unwrap();
        assert!(low == 0.0 && high > 0.9);
        let [low, _] = row(Measure::Nats, &[0.001, 0.9]).interval.unwrap();
        assert!(low < 0.0);
    }

    #[test]
    fn intervals_fit_what_is_averaged() {
        let close = |found: Option<[f64; 2]>, expected: [f64; 2]| {
            let found = found.unwrap();
            let off = |side: usize| (found[side] - expected[side]).abs();
            assert!(off(0) < 5e-5 && off(1) < 5e-5, "{found:?}");
        };
        // Wilson, 0 of 20 (Newcombe, 1998, table I).
        close(row(Measure::Score, &[0.0; 20]).interval, [0.0, 0.1611]);
        // The standard error of 0, 0 and 0.5 is 1/6, and Student's t for three is 4.3027: cut at 0.
        close(row(Measure::Score, &[0.0, 0.0, 0.5]).interval, [0.0, 0.88378]);
        close(row(Measure::Nats, &[0.0, 0.0, 0.5]).interval, [-0.55044, 0.88378]);
        assert_eq!(row(Measure::Nats, &[0.5]).interval, None);
        let row = row(Measure::Kl, &[1.0, 3.0]);
        assert_eq!((row.mean.mean, row.seconds), (2.0, 1.0));
        assert_eq!(row.over_full.map(|over| over.mean), Some(1.5));
        assert_eq!((row.held_of_full, row.spare_of_full), (0.25, Some(0.1)));
    }
}
