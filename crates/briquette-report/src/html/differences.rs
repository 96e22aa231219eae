//! Policies compared on the samples that both have: differences with intervals and p-values.

use std::{
    collections::BTreeMap,
    f64::consts::{LN_2, PI},
};

use briquette_eval::stats::{Estimate, Mean};
use serde::Serialize;

use super::{
    collect::{Collected, Scores},
    key::{Column, FULL, Row, Unit},
    measure::{Measure, Measures, are_alike, mean_difference, over},
};
use crate::files::Text;

/// Samples of a task, or those of one length, and a number measured on them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Compared {
    pub(super) column: Column,
    pub(super) length: Option<u64>,
    pub(super) measure: Measure,
}

/// A difference between two policies on the same samples.
#[derive(Debug)]
pub(super) struct Difference {
    /// The first minus the second.
    policies: [String; 2],
    pub(super) estimate: Estimate,
    p: f64,
    /// Holm's, over all differences of one map.
    pub(super) corrected: f64,
}

/// Differences by what is compared; of each model by policy, or both policies, and budget.
pub(super) type ByCompared = BTreeMap<Compared, BTreeMap<Row, Difference>>;

#[derive(Debug, Default)]
pub(super) struct Differences {
    /// Policies from the full cache.
    pub(super) full: ByCompared,
    /// Policies at one budget from each other.
    pub(super) pairs: ByCompared,
}

/// A line of `differences.csv`.
#[derive(Debug, Serialize)]
pub(super) struct CsvRow<'a> {
    model: Text<'a>,
    policy: Text<'a>,
    against: Text<'a>,
    budget: Text<'a>,
    task: Text<'a>,
    ask: &'a str,
    length: Option<u64>,
    measure: Measure,
    metric: &'a str,
    samples: usize,
    difference: f64,
    low: Option<f64>,
    high: Option<f64>,
    p: f64,
    p_holm: f64,
}

impl Differences {
    pub(super) fn of(collected: &Collected, measures: &Measures) -> Self {
        let mut all = Self::default();
        let compared = [Measure::Score, Measure::Nats, Measure::Kl];
        for measure in compared.into_iter().chain(measures.beside()) {
            for column in measures.columns(measure) {
                for model in collected.each(|row| &row.model) {
                    let lengths = collected.lengths(model, &column).into_iter().map(Some);
                    for length in [None].into_iter().chain(lengths) {
                        let column = column.clone();
                        all.add(collected, model, Compared { column, length, measure });
                    }
                }
            }
        }
        all
    }

    fn add(&mut self, collected: &Collected, model: &str, compared: Compared) {
        let rows = collected.rows().filter(|row| row.model == model);
        let rows = rows.filter_map(|row| Some((row, values(collected, row, &compared)?)));
        let widest = widest(collected, model, &compared);
        let (full, rows): (Vec<_>, Vec<_>) = rows.partition(|(row, _)| row.is_full());
        let (mut from_full, mut pairs) = (Vec::new(), Vec::new());
        for (place, (row, these)) in rows.iter().enumerate() {
            // Divergence is from the full cache already.
            for (_, those) in full.iter().filter(|_| compared.measure != Measure::Kl) {
                let found = Difference::of([&row.policy, FULL], widest, &over(these, those));
                from_full.extend(found.map(|found| ((*row).clone(), found)));
            }
            let others = rows[place + 1..].iter().filter(|(other, _)| other.budget == row.budget);
            for (other, those) in others {
                let found =
                    Difference::of([&row.policy, &other.policy], widest, &over(these, those));
                let policy = format!("{} vs {}", row.policy, other.policy);
                pairs.extend(found.map(|found| (Row { policy, ..(*row).clone() }, found)));
            }
        }
        for (found, into) in [(from_full, &mut self.full), (pairs, &mut self.pairs)] {
            if !found.is_empty() {
                into.entry(compared.clone()).or_default().extend(correct(found));
            }
        }
    }

    pub(super) fn csv<'a>(&'a self, measures: &'a Measures) -> impl Iterator<Item = CsvRow<'a>> {
        let groups = self.full.iter().chain(&self.pairs);
        let each = groups.flat_map(|(of, found)| found.iter().map(move |found| (of, found)));
        each.map(|(Compared { column, length, measure }, (row, found))| CsvRow {
            model: Text(&row.model),
            policy: Text(&found.policies[0]),
            against: Text(&found.policies[1]),
            budget: Text(&row.budget),
            task: Text(&column.task),
            ask: column.ask(),
            length: *length,
            measure: *measure,
            metric: measures.metric_name(Some(column), *measure),
            samples: found.estimate.count,
            difference: found.estimate.mean,
            low: found.estimate.interval.map(|[low, _]| low),
            high: found.estimate.interval.map(|[_, high]| high),
            p: found.p,
            p_holm: found.corrected,
        })
    }
}

impl Difference {
    fn of(policies: [&str; 2], widest: f64, differences: &[f64]) -> Option<Self> {
        let (p, estimate) = (p(differences), mean_difference(differences).within(-widest, widest));
        let policies = policies.map(str::to_owned);
        (!differences.is_empty()).then_some(Self { policies, estimate, p, corrected: p })
    }

    pub(super) fn is_of_pair(&self) -> bool {
        self.policies[1] != FULL
    }

    pub(super) fn p_text(&self) -> String {
        match self.corrected {
            p if p < 0.001 => "p < 0.001".into(),
            p => format!("p = {p:.3}"),
        }
    }
}

/// How far two of the numbers can lie apart.
fn widest(collected: &Collected, model: &str, Compared { column, measure, .. }: &Compared) -> f64 {
    let of_model = collected.scores.iter().filter(|(row, _)| row.model == model);
    match measure {
        Measure::Score => {
            let lowest = of_model.filter_map(|(_, tasks)| tasks.get(column)).map(Scores::lowest);
            1.0 - lowest.fold(0.0, f64::min)
        }
        Measure::By(metric) => metric.range().end() - metric.range().start(),
        _ => f64::INFINITY,
    }
}

/// The number of each sample, where a row has it.
fn values<'a>(
    collected: &'a Collected,
    row: &Row,
    Compared { column, length, measure }: &Compared,
) -> Option<BTreeMap<&'a Unit, f64>> {
    let scores = collected.scores.get(row).and_then(|tasks| tasks.get(column));
    let all = match measure {
        Measure::Score => &scores?.by_unit,
        Measure::By(metric) => scores?.beside.get(metric)?,
        Measure::Nats => &collected.texts.get(row)?.get(&column.task)?.by_unit,
        Measure::Kl => &collected.fidelity.get(row)?.get(&column.task)?.kl,
        _ => return None,
    };
    let units = match length {
        Some(length) => Some(scores?.lengths.get(length)?),
        None => None,
    };
    let here = all.iter().filter(|(unit, _)| units.is_none_or(|units| units.contains(*unit)));
    Some(here.map(|(unit, value)| (unit, *value)).collect())
}

/// The p-value of no difference: of the paired t test; of the sign test where differences have no
/// spread or are those of scores of 0 and 1, where it is McNemar's exact test.
fn p(differences: &[f64]) -> f64 {
    let by_sign = differences.iter().all(|value| [-1.0, 0.0, 1.0].contains(value));
    match Mean::of(differences) {
        Mean { mean, error: Some(error), count } if !by_sign && !are_alike(differences) => {
            student(mean / error, count - 1)
        }
        _ => {
            let count = |of: fn(&&f64) -> bool| differences.iter().filter(of).count();
            sign(count(|value| **value > 0.0), count(|value| **value < 0.0))
        }
    }
}

/// The two-sided p-value of Student's t (Abramowitz and Stegun, 1964, 26.7.3 and 26.7.4).
fn student(t: f64, degrees: usize) -> f64 {
    let angle = (t.abs() / (degrees as f64).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let odd = degrees % 2;
    let (mut term, mut sum) = (if odd == 1 { cos } else { 1.0 }, 0.0);
    for power in (odd..degrees.saturating_sub(1)).step_by(2) {
        sum += term;
        term *= cos * cos * (power + 1) as f64 / (power + 2) as f64;
    }
    let within = if odd == 1 { (angle + sin * sum) * 2.0 / PI } else { sin * sum };
    (1.0 - within).clamp(0.0, 1.0)
}

/// The two-sided p-value of so many rises and falls, each as likely.
fn sign(rises: usize, falls: usize) -> f64 {
    let all = rises + falls;
    let (mut log, mut tail) = (-(all as f64) * LN_2, 0.0);
    for few in 0..=rises.min(falls) {
        tail += log.exp();
        log += ((all - few) as f64 / (few + 1) as f64).ln();
    }
    f64::min(2.0 * tail, 1.0)
}

/// Corrects the p-values for their number (Holm, 1979).
fn correct(mut found: Vec<(Row, Difference)>) -> Vec<(Row, Difference)> {
    found.sort_by(|(_, a), (_, b)| a.p.total_cmp(&b.p));
    let (count, mut reached) = (found.len(), 0.0);
    for (place, (_, difference)) in found.iter_mut().enumerate() {
        reached = f64::max(reached, (count - place) as f64 * difference.p).min(1.0);
        difference.corrected = reached;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 5e-4
    }

    #[test]
    fn p_values_are_those_of_the_tables() {
        // Quantiles of 97.5 %, and one of 99.5 %.
        for (t, degrees, p) in [
            (12.706, 1, 0.05),
            (4.303, 2, 0.05),
            (-3.182, 3, 0.05),
            (2.776, 4, 0.05),
            (3.250, 9, 0.01),
            (1.984, 99, 0.05),
            (0.0, 7, 1.0),
        ] {
            assert!(close(student(t, degrees), p), "{t}, {degrees}: {}", student(t, degrees));
        }
        // 2 (1 + 10) / 2¹⁰, 2 / 2⁴.
        assert!(close(sign(9, 1), 0.021_484) && close(sign(0, 4), 0.125));
        assert_eq!((sign(0, 0), sign(3, 3)), (1.0, 1.0));
        // 2⁻²⁰⁰⁰ is below what a number holds.
        assert!(sign(1000, 1000) == 1.0 && sign(900, 1100) > 1e-6 && sign(900, 1100) < 1e-4);
    }

    #[test]
    fn the_test_fits_the_differences() {
        assert_eq!(p(&[-1.0, 0.0, -1.0, -1.0]), sign(0, 3));
        let spread = [0.5, 0.1, 0.3];
        assert_eq!(p(&spread), student(0.3 / (0.04_f64 / 3.0).sqrt(), 2));
        // Without a spread t would be infinite.
        assert_eq!((p(&[0.5; 3]), mean_difference(&[0.5; 3]).interval), (sign(3, 0), None));
        assert_eq!((p(&[0.5]), p(&[])), (1.0, 1.0));
    }

    #[test]
    fn no_interval_holds_a_difference_that_cannot_be() {
        let of = |widest| Difference::of(["a", "b"], widest, &[-1.0, -0.9, -0.2]).unwrap();
        let interval = |widest| of(widest).estimate.interval.unwrap();
        assert!(interval(f64::INFINITY)[0] < -1.0);
        assert_eq!(interval(1.0)[0], -1.0);
    }

    #[test]
    fn many_comparisons_are_corrected() {
        let one = |(place, p): (usize, &f64)| {
            let row = Row {
                model: String::new(),
                policy: String::new(),
                budget: (place + 1).to_string(),
            };
            let estimate = Estimate::of(&[]);
            (row, Difference { policies: Default::default(), estimate, p: *p, corrected: *p })
        };
        let found = [0.04, 0.01, 0.03, 0.005, 0.6].iter().enumerate().map(one).collect();
        let mut found = correct(found);
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        // 5 · 0.005, 4 · 0.01, 3 · 0.03; 2 · 0.04 is below the one before.
        for ((_, found), expected) in found.iter().zip([0.09, 0.04, 0.09, 0.025, 0.6]) {
            assert!(close(found.corrected, expected), "{found:?}");
        }
    }
}
