use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use briquette_eval::{metrics::Metric, stats::Estimate};
use serde::Serialize;

use super::{
    collect::{Collected, Scores},
    key::{Column, Row, Unit},
};
use crate::{files::Text, plot::short};

/// A number measured for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Measure {
    Score,
    /// In pairs: the same samples on the full cache.
    ScoreOverFull,
    RightTokens,
    Prefill,
    Decode,
    Nats,
    /// In pairs: the same windows on the full cache.
    NatsOverFull,
    Kl,
    Agreement,
    OutputError,
    Overlap,
    HeldShare,
    SpareShare,
    HeldBytes,
    SpareBytes,
    Seconds,
    /// A score by a metric beside the first.
    #[serde(untagged)]
    By(Metric),
}

impl Measure {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Score => "score",
            Self::ScoreOverFull => "score over full",
            Self::RightTokens => "right tokens",
            Self::Prefill => "prefill, s",
            Self::Decode => "decode, ms a token",
            Self::Nats => "nats a token",
            Self::NatsOverFull => "nats over full",
            Self::Kl => "KL, nats",
            Self::Agreement => "agreement",
            Self::OutputError => "output error",
            Self::Overlap => "overlap with the oracle",
            Self::HeldShare => "held, of full",
            Self::SpareShare => "spare room, of full",
            Self::HeldBytes => "held, KiB",
            Self::SpareBytes => "spare room, KiB",
            Self::Seconds => "s a sample",
            Self::By(metric) => metric.name(),
        }
    }

    /// Explanation of the number, in the words of the manual.
    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Score => "Mean score of the samples, 0 to 1. More is better.",
            Self::ScoreOverFull => "Score above that of the full cache on the same samples.",
            Self::RightTokens => "Share of the right tokens, each at its place. More is better.",
            Self::Prefill => {
                "Seconds from the start of the context to the first token of the answer."
            }
            Self::Decode => "Milliseconds of a decode step.",
            Self::Nats => "Negative log likelihood of a token, in nats. Less is better.",
            Self::NatsOverFull => {
                "Nats a token above the full cache in the same windows. Less is better."
            }
            Self::Kl => "KL(full ‖ compressed) of the next token, in nats. Less is better.",
            Self::Agreement => {
                "Share of tokens where the most likely next token is that of the full cache. More is better."
            }
            Self::OutputError => {
                "‖full − compressed‖ / ‖full‖ of attention outputs, the mean over layers. Less is better."
            }
            Self::Overlap => {
                "Share of the kept tokens that an oracle keeps too, which sees the attention to come. More is better."
            }
            Self::HeldShare => {
                "Bytes of the keys and values that are kept, with their bookkeeping, over those of a full cache's keys and values."
            }
            Self::SpareShare => {
                "Bytes of free room for tokens to come, over those of a full cache's keys and values."
            }
            Self::HeldBytes => {
                "KiB of the keys and values that are kept, with their bookkeeping, at the end of a sample, the mean."
            }
            Self::SpareBytes => "KiB of free room for tokens to come, the mean.",
            Self::Seconds => {
                "Seconds of a sample, the mean: what it takes under this policy alone, whatever ran beside it."
            }
            Self::By(_) => "Mean score of the samples by this metric. More is better.",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Prefill | Self::Seconds => "s",
            Self::Decode => "ms",
            Self::Nats | Self::NatsOverFull | Self::Kl => "nats",
            Self::HeldBytes | Self::SpareBytes => "bytes",
            _ => "share",
        }
    }

    /// How better compares with worse; `None` where it is no matter of quality.
    pub(super) fn better(self) -> Option<Ordering> {
        match self {
            Self::Score
            | Self::ScoreOverFull
            | Self::RightTokens
            | Self::Agreement
            | Self::Overlap
            | Self::By(_) => Some(Ordering::Greater),
            Self::Nats | Self::NatsOverFull | Self::Kl | Self::OutputError => Some(Ordering::Less),
            _ => None,
        }
    }

    /// Whether it lies in 0..=1.
    pub(super) fn is_share(self) -> bool {
        match self {
            Self::Score | Self::RightTokens | Self::Agreement | Self::Overlap | Self::HeldShare => {
                true
            }
            Self::By(metric) => *metric.range().start() >= 0.0,
            _ => false,
        }
    }

    pub(super) fn text(self, value: f64) -> String {
        match self {
            Self::Score | Self::RightTokens | Self::Agreement | Self::Overlap | Self::By(_) => {
                format!("{value:.2}")
            }
            Self::ScoreOverFull => format!("{value:+.2}"),
            Self::HeldShare | Self::SpareShare => format!("{:.1} %", 100.0 * value),
            Self::HeldBytes | Self::SpareBytes => format!("{:.0}", value / 1024.0),
            Self::Nats | Self::Kl | Self::OutputError => format!("{value:.3}"),
            Self::NatsOverFull => format!("{value:+.3}"),
            Self::Prefill | Self::Decode | Self::Seconds => short(value),
        }
    }

    /// The ends of an interval: as many digits as the value, the unit once.
    pub(super) fn bounds(self, [low, high]: [f64; 2]) -> String {
        let low = self.text(low);
        format!("{} to {}", low.trim_end_matches(" %"), self.text(high))
    }

    /// A value with its interval, in words.
    pub(super) fn tip(self, estimate: &Estimate) -> String {
        let Estimate { mean, interval, count } = estimate;
        let interval = match interval {
            Some([low, high]) => {
                format!("95 % interval {} to {}", self.text(*low), self.text(*high))
            }
            None => "no interval".into(),
        };
        let samples = if *count == 1 { "sample" } else { "samples" };
        format!("{} {}, {interval}, {count} {samples}", self.label(), self.text(*mean))
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Estimates by row, by task (`None` for all tasks together), by measure.
#[derive(Debug, Default)]
pub(super) struct Measures {
    numbers: BTreeMap<(Row, Option<Column>, Measure), Estimate>,
    /// The metric of the scores of a task, if it has one.
    metrics: BTreeMap<Column, Metric>,
}

/// A line of `report.csv`.
#[derive(Debug, Serialize)]
pub(super) struct CsvRow<'a> {
    model: Text<'a>,
    policy: Text<'a>,
    budget: Text<'a>,
    task: Text<'a>,
    ask: &'a str,
    measure: Measure,
    metric: &'a str,
    unit: &'a str,
    samples: usize,
    mean: f64,
    low: Option<f64>,
    high: Option<f64>,
}

impl Measures {
    pub(super) fn of(collected: &Collected) -> Self {
        let mut measures = Self::default();
        for (row, tasks) in &collected.scores {
            for (column, scores) in tasks {
                let full = collected.scores.get(&row.full()).and_then(|tasks| tasks.get(column));
                measures.scores(row, column, scores, full);
            }
        }
        for (row, tasks) in &collected.texts {
            for (task, texts) in tasks {
                let at = |measure| (row, Some(Column { task: task.clone(), ask: None }), measure);
                measures.add(at(Measure::Nats), Estimate::of(&values(&texts.by_unit)));
                if let Some(full) = collected.texts.get(&row.full()).and_then(|all| all.get(task)) {
                    let over = over(&texts.by_unit, &full.by_unit);
                    measures.add(at(Measure::NatsOverFull), Estimate::of(&over));
                }
            }
        }
        for (row, tasks) in &collected.fidelity {
            for (task, found) in tasks {
                let at = |measure| (row, Some(Column { task: task.clone(), ask: None }), measure);
                let kl = Estimate::of(&values(&found.kl)).within(0.0, f64::INFINITY);
                measures.add(at(Measure::Kl), kl);
                let agreement = Estimate::of(&values(&found.agreement)).within(0.0, 1.0);
                measures.add(at(Measure::Agreement), agreement);
                let error = Estimate::of(&values(&found.error)).within(0.0, f64::INFINITY);
                measures.add(at(Measure::OutputError), error);
                let overlap = Estimate::of(&values(&found.overlap)).within(0.0, 1.0);
                measures.add(at(Measure::Overlap), overlap);
            }
        }
        for (row, memory) in &collected.memory {
            let sure = |mean| Estimate { mean, interval: None, count: memory.count };
            let full = memory.full().max(1.0);
            measures.add((row, None, Measure::HeldShare), sure(memory.held() / full));
            measures.add((row, None, Measure::HeldBytes), sure(memory.held()));
            if let Some(spare) = memory.spare() {
                measures.add((row, None, Measure::SpareShare), sure(spare / full));
                measures.add((row, None, Measure::SpareBytes), sure(spare));
            }
            let seconds = collected.seconds.get(row).copied().unwrap_or(0.0);
            let each = seconds / memory.count as f64;
            measures.add((row, None, Measure::Seconds), sure(each));
        }
        measures.means(collected);
        let mut metrics: BTreeMap<&Column, BTreeSet<Metric>> = BTreeMap::new();
        for (column, scores) in collected.scores.values().flatten() {
            metrics.entry(column).or_default().extend(&scores.metrics);
        }
        for (column, metrics) in metrics {
            if let (Some(metric), 1) = (metrics.first(), metrics.len()) {
                measures.metrics.insert(column.clone(), *metric);
            }
        }
        measures
    }

    fn scores(&mut self, row: &Row, column: &Column, scores: &Scores, full: Option<&Scores>) {
        let at = |measure| (row, Some(column.clone()), measure);
        let score = Estimate::of_scores_from(scores.lowest(), &values(&scores.by_unit));
        self.add(at(Measure::Score), score);
        for (metric, by_unit) in &scores.beside {
            let lowest = *metric.range().start();
            let score = Estimate::of_scores_from(lowest, &values(by_unit));
            self.add(at(Measure::By(*metric)), score);
        }
        let right = Estimate::of_scores(&values(&scores.right_tokens));
        self.add(at(Measure::RightTokens), right);
        if let Some(full) = full {
            let over = over(&scores.by_unit, &full.by_unit);
            self.add(at(Measure::ScoreOverFull), Estimate::of(&over));
        }
        self.add(
            at(Measure::Prefill),
            Estimate::of(&values(&scores.prefill)).within(0.0, f64::INFINITY),
        );
        self.add(
            at(Measure::Decode),
            Estimate::of(&values(&scores.decode)).within(0.0, f64::INFINITY),
        );
    }

    /// The mean score over tasks, for rows that have them all, and speed over all samples.
    fn means(&mut self, collected: &Collected) {
        for model in collected.each(|row| &row.model) {
            let rows = || collected.scores.iter().filter(move |(row, _)| row.model == model);
            for ask in [
                Some(briquette_eval::tasks::Question::Before),
                Some(briquette_eval::tasks::Question::After),
            ] {
                let mut columns: Vec<&Column> =
                    rows().flat_map(|(_, tasks)| tasks.keys()).filter(|c| c.ask == ask).collect();
                columns.sort();
                columns.dedup();
                if columns.len() < 2 {
                    continue;
                }
                for (row, _) in rows() {
                    let each = columns.iter().map(|c| self.get(row, Some(c), Measure::Score));
                    if let Some(each) = each.collect::<Option<Vec<_>>>() {
                        let lowest = rows().flat_map(|(_, tasks)| tasks.values());
                        let lowest = lowest.map(Scores::lowest).fold(0.0, f64::min);
                        let mean = Estimate::mean_of(&each).within(lowest, 1.0);
                        let all = Column { task: String::new(), ask };
                        self.add((row, Some(all), Measure::Score), mean);
                    }
                }
            }
            for (row, tasks) in rows() {
                let of = |each: fn(&Scores) -> &BTreeMap<Unit, f64>| {
                    let all: Vec<f64> = tasks.values().flat_map(|s| values(each(s))).collect();
                    Estimate::of(&all).within(0.0, f64::INFINITY)
                };
                self.add((row, None, Measure::Prefill), of(|scores| &scores.prefill));
                self.add((row, None, Measure::Decode), of(|scores| &scores.decode));
            }
        }
    }

    /// Adds an estimate, unless it is of no number.
    fn add(&mut self, (row, column, measure): (&Row, Option<Column>, Measure), known: Estimate) {
        if known.count > 0 {
            self.numbers.insert((row.clone(), column, measure), known);
        }
    }

    pub(super) fn get(
        &self,
        row: &Row,
        column: Option<&Column>,
        measure: Measure,
    ) -> Option<Estimate> {
        self.numbers.get(&(row.clone(), column.cloned(), measure)).copied()
    }

    /// The metric of the scores of a task; `None` where samples have different ones.
    pub(super) fn metric(&self, column: &Column) -> Option<Metric> {
        self.metrics.get(column).copied()
    }

    /// Scores by metrics beside the first, of any task.
    pub(super) fn beside(&self) -> BTreeSet<Measure> {
        let measures = self.numbers.keys().map(|(_, _, measure)| *measure);
        measures.filter(|measure| matches!(measure, Measure::By(_))).collect()
    }

    /// The mean over all tasks, where there are several.
    pub(super) fn overall(
        &self,
        row: &Row,
        ask: Option<briquette_eval::tasks::Question>,
    ) -> Option<Estimate> {
        self.get(row, Some(&Column { task: String::new(), ask }), Measure::Score)
    }

    /// Tasks with this measure, in order.
    pub(super) fn columns(&self, measure: Measure) -> Vec<Column> {
        let mut columns: Vec<Column> = self
            .numbers
            .keys()
            .filter(|(_, column, found)| *found == measure && column.is_some())
            .filter_map(|(_, column, _)| column.clone())
            .filter(|column| !column.task.is_empty())
            .collect();
        columns.sort();
        columns.dedup();
        columns
    }

    pub(super) fn csv(&self) -> impl Iterator<Item = CsvRow<'_>> {
        let metric = |column: Option<&Column>, measure| match measure {
            Measure::By(metric) => metric.name(),
            Measure::Score | Measure::ScoreOverFull => {
                column.and_then(|column| self.metric(column)).map_or("", Metric::name)
            }
            _ => "",
        };
        self.numbers.iter().map(move |((row, column, measure), estimate)| CsvRow {
            model: Text(&row.model),
            policy: Text(&row.policy),
            budget: Text(&row.budget),
            task: Text(column.as_ref().map_or("", |column| &column.task)),
            ask: column.as_ref().map_or("", Column::ask),
            measure: *measure,
            metric: metric(column.as_ref(), *measure),
            unit: measure.unit(),
            samples: estimate.count,
            mean: estimate.mean,
            low: estimate.interval.map(|[low, _]| low),
            high: estimate.interval.map(|[_, high]| high),
        })
    }
}

fn values(of: &BTreeMap<Unit, f64>) -> Vec<f64> {
    of.values().copied().collect()
}

/// Differences on the samples that both have.
fn over(these: &BTreeMap<Unit, f64>, full: &BTreeMap<Unit, f64>) -> Vec<f64> {
    these.iter().filter_map(|(unit, value)| Some(value - full.get(unit)?)).collect()
}
