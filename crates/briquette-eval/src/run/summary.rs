use serde::Serialize;

use super::{
    found::{Found, Measure},
    plan::{Plan, PlannedPolicy},
    results::Results,
};
use crate::{
    grid::Question,
    record::{CacheBytes, Key},
    report::table,
    stats::{Estimate, Mean},
};

/// Means of a run by task, policy and budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// In the order of the plan.
    pub rows: Vec<Row>,
    /// Policies that cannot hold.
    pub unavailable: Vec<Unavailable>,
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
    /// Why.
    pub reason: String,
}

impl Unavailable {
    fn new(key: &Key, reason: &str) -> Self {
        let Key { model, policy, budget, .. } = key.clone();
        Self { model, policy, budget, reason: reason.to_owned() }
    }
}

/// Values of a sample to average: the number, the cache, and seconds.
type Value = (f64, CacheBytes, f64);

/// A task under a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The label of the model.
    pub model: String,
    /// The label of the task.
    pub task: String,
    /// When the question came.
    pub ask: Option<Question>,
    /// The label of the policy.
    pub policy: String,
    /// Its budget as text.
    pub budget: String,
    /// The averaged number.
    pub measure: Measure,
    /// The mean over samples, and its standard error.
    pub mean: Mean,
    /// The ends of the 95 % interval: Wilson's for scores that are 0 or 1, Student's for others; of
    /// one of these there is none.
    pub interval: Option<[f64; 2]>,
    /// Bytes of what is kept over bytes of a full cache, of all samples together; with the spare
    /// room where that is not known apart.
    pub held_of_full: f64,
    /// Bytes of free room for tokens to come over bytes of a full cache; `None` in results of older
    /// versions.
    pub spare_of_full: Option<f64>,
    /// Wall-clock seconds of all samples.
    pub seconds: f64,
}

impl Summary {
    /// Means over the units of a plan that have results.
    pub fn new(plan: &Plan, results: &Results) -> Self {
        let mut groups: Vec<(Key, Measure, Vec<Value>)> = Vec::new();
        let mut places = std::collections::BTreeMap::new();
        for unit in plan.units() {
            let Some(Found::Number { measure, value, held, seconds }) = results.found(&unit.key)
            else {
                continue;
            };
            let group = Key { seed: 0, sample: String::new(), ..unit.key.clone() };
            let place = *places.entry((group.clone(), *measure)).or_insert_with(|| {
                groups.push((group, *measure, Vec::new()));
                groups.len() - 1
            });
            groups[place].2.push((*value, *held, *seconds));
        }
        // Tasks together, rather than samples as they run.
        groups.sort_by_key(|(key, ..)| {
            let model = plan.models.iter().position(|one| one.opened.label == key.model);
            let task = plan.tasks.iter().position(|task| task.label == key.task);
            (model, task, key.ask)
        });
        let rows = groups.into_iter().map(|(key, measure, found)| Row::new(key, measure, &found));
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
            let measured = places.keys().any(|(group, _)| {
                (&group.model, &group.policy, &group.budget)
                    == (&key.model, &key.policy, &key.budget)
            });
            if planned && !measured && !unavailable.contains(&row) {
                unavailable.push(row);
            }
        }
        Self { rows: rows.collect(), unavailable }
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let mut table = table::new();
        let models = self.rows.iter().any(|row| row.model != self.rows[0].model);
        let mut header = vec![
            "task",
            "measure",
            "policy",
            "budget",
            "mean",
            "samples",
            "held\nof full",
            "spare\nof full",
        ];
        if models {
            header.insert(0, "model");
        }
        table.set_header(header);
        for row in &self.rows {
            let measure = match (row.measure, row.ask) {
                (Measure::Score, Some(Question::Before)) => "score, asked before",
                (Measure::Score, Some(Question::After)) => "score, asked after",
                (Measure::Score, None) => "score",
                (Measure::Nats, _) => "nats a token",
                (Measure::Kl, _) => "KL, nats a token",
            };
            let digits = if row.measure == Measure::Score { 2 } else { 3 };
            let mean = row.mean.mean;
            let mean = match row.interval {
                Some([low, high]) => format!("{mean:.digits$} [{low:.digits$}, {high:.digits$}]"),
                None => format!("{mean:.digits$}"),
            };
            let mut cells = vec![
                table::left(&row.task),
                table::left(measure),
                table::left(&row.policy),
                table::right(&row.budget),
                table::right(mean),
                table::right(row.mean.count),
                table::right(table::share(row.held_of_full)),
                table::right(row.spare_of_full.map_or("-".into(), table::share)),
            ];
            if models {
                cells.insert(0, table::left(&row.model));
            }
            table.add_row(cells);
        }
        table.to_string()
    }
}

impl Row {
    fn new(key: Key, measure: Measure, found: &[Value]) -> Self {
        let values: Vec<f64> = found.iter().map(|(value, ..)| *value).collect();
        let estimate = match measure {
            Measure::Score => Estimate::of_scores(&values),
            Measure::Kl => Estimate::of(&values).within(0.0, f64::INFINITY),
            Measure::Nats => Estimate::of(&values),
        };
        let bytes = |of: &dyn Fn(&CacheBytes) -> usize| -> f64 {
            found.iter().map(|(_, held, _)| of(held) as f64).sum()
        };
        let spare = found.iter().map(|(_, held, _)| Some(held.spare? as f64)).sum::<Option<f64>>();
        let full = bytes(&|held| held.full).max(1.0);
        Self {
            model: key.model,
            task: key.task,
            ask: key.ask,
            policy: key.policy,
            budget: key.budget,
            measure,
            mean: Mean::of(&values),
            interval: estimate.interval,
            held_of_full: (bytes(&|held| held.bytes) - spare.unwrap_or(0.0)) / full,
            spare_of_full: spare.map(|spare| spare / full),
            seconds: found.iter().map(|(.., seconds)| seconds).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(measure: Measure, values: &[f64]) -> Row {
        let held = CacheBytes { bytes: 35, spare: Some(10), full: 100 };
        let found: Vec<Value> = values.iter().map(|value| (*value, held, 0.5)).collect();
        let key = Key {
            model: "m".into(),
            policy: "p".into(),
            budget: "64".into(),
            seed: 0,
            task: "t".into(),
            sample: String::new(),
            ask: None,
        };
        Row::new(key, measure, &found)
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
        assert_eq!((row.held_of_full, row.spare_of_full), (0.25, Some(0.1)));
    }
}
