use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use briquette_eval::{metrics::Metric, stats::Estimate, tasks::Question};
use serde::Serialize;

use super::{
    collect::{Collected, Scores},
    key::{Column, Methods, Row, Unit, method},
};
use crate::{files::Text, plot::short};

/// A number measured for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Measure {
    Score,
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
            Self::RightTokens => "right tokens",
            Self::Prefill => "prefill, s",
            Self::Decode => "decode, ms per token",
            Self::Nats => "nats per token",
            Self::NatsOverFull => "nats over full",
            Self::Kl => "KL, nats",
            Self::Agreement => "agreement",
            Self::OutputError => "output error",
            Self::Overlap => "overlap with the oracle",
            Self::HeldShare => "held, of full",
            Self::SpareShare => "spare room, of full",
            Self::HeldBytes => "held, KiB",
            Self::SpareBytes => "spare room, KiB",
            Self::Seconds => "s per sample",
            Self::By(metric) => metric.name(),
        }
    }

    /// Explanation of the number, in the words of the manual.
    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Score => "Mean score of the samples, 0 to 1. More is better.",
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
            Self::Score | Self::RightTokens | Self::Agreement | Self::Overlap | Self::By(_) => {
                Some(Ordering::Greater)
            }
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
            Self::HeldShare | Self::SpareShare => format!("{:.1} %", 100.0 * value),
            Self::HeldBytes | Self::SpareBytes => format!("{:.0}", value / 1024.0),
            Self::Nats | Self::Kl | Self::OutputError => format!("{value:.3}"),
            Self::NatsOverFull => Self::Nats.signed(value),
            Self::Prefill | Self::Decode | Self::Seconds => short(value),
        }
    }

    /// The ends of an interval: as many digits as the value, the unit once.
    pub(super) fn bounds(self, [low, high]: [f64; 2]) -> String {
        let low = self.text(low);
        format!("{} to {}", low.trim_end_matches(" %"), self.text(high))
    }

    /// A difference, with its sign.
    pub(super) fn signed(self, value: f64) -> String {
        let text = self.text(value);
        if text.starts_with(['-', '+']) { text } else { format!("+{text}") }
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
    method: &'a str,
    paper: &'a str,
}

impl Measures {
    pub(super) fn of(collected: &Collected) -> Self {
        let mut measures = Self::default();
        for (row, tasks) in &collected.scores {
            for (column, scores) in tasks {
                measures.scores(row, column, scores);
            }
        }
        for (row, tasks) in &collected.texts {
            for (task, texts) in tasks {
                let at = |measure| (row, Some(Column { task: task.clone(), ask: None }), measure);
                measures.add(at(Measure::Nats), Estimate::of(&values(&texts.by_unit)));
                if let Some(full) = collected.texts.get(&row.full()).and_then(|all| all.get(task)) {
                    let over = over(&texts.by_unit, &full.by_unit);
                    measures.add(at(Measure::NatsOverFull), mean_difference(&over));
                }
            }
        }
        for (row, tasks) in &collected.fidelity {
            for (task, found) in tasks {
                let at = |measure| (row, Some(Column { task: task.clone(), ask: None }), measure);
                for (measure, of, most) in [
                    (Measure::Kl, &found.kl, f64::INFINITY),
                    (Measure::Agreement, &found.agreement, 1.0),
                    (Measure::OutputError, &found.error, f64::INFINITY),
                    (Measure::Overlap, &found.overlap, 1.0),
                ] {
                    measures.add(at(measure), Estimate::of(&values(of)).within(0.0, most));
                }
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

    fn scores(&mut self, row: &Row, column: &Column, scores: &Scores) {
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
        for (measure, of) in
            [(Measure::Prefill, &scores.prefill), (Measure::Decode, &scores.decode)]
        {
            self.add(at(measure), Estimate::of(&values(of)).within(0.0, f64::INFINITY));
        }
    }

    /// The mean score over tasks, for rows that have them all, and speed over all samples.
    fn means(&mut self, collected: &Collected) {
        for model in collected.each(|row| &row.model) {
            let rows = || collected.scores.iter().filter(move |(row, _)| row.model == model);
            for ask in [Question::Before, Question::After].map(Some) {
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
                        self.add((row, Some(Column::all(ask)), Measure::Score), mean);
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

    /// Scores by metrics beside the first, of any task.
    pub(super) fn beside(&self) -> BTreeSet<Measure> {
        let measures = self.numbers.keys().map(|(_, _, measure)| *measure);
        measures.filter(|measure| matches!(measure, Measure::By(_))).collect()
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

    /// The metric of a score; empty where there is none, or several.
    pub(super) fn metric_name(&self, column: Option<&Column>, measure: Measure) -> &'static str {
        match measure {
            Measure::By(metric) => metric.name(),
            Measure::Score => {
                column.and_then(|column| self.metrics.get(column)).map_or("", |of| of.name())
            }
            _ => "",
        }
    }

    pub(super) fn csv<'a>(&'a self, methods: &'a Methods) -> impl Iterator<Item = CsvRow<'a>> {
        let about = |row: &Row| methods.get(method(&row.policy));
        self.numbers.iter().map(move |((row, column, measure), estimate)| CsvRow {
            model: Text(&row.model),
            policy: Text(&row.policy),
            budget: Text(&row.budget),
            task: Text(column.as_ref().map_or("", |column| &column.task)),
            ask: column.as_ref().map_or("", Column::ask),
            measure: *measure,
            metric: self.metric_name(column.as_ref(), *measure),
            unit: measure.unit(),
            samples: estimate.count,
            mean: estimate.mean,
            low: estimate.interval.map(|[low, _]| low),
            high: estimate.interval.map(|[_, high]| high),
            method: about(row).map_or("", |method| &method.title),
            paper: about(row).map_or("", |method| &method.paper),
        })
    }
}

fn values(of: &BTreeMap<Unit, f64>) -> Vec<f64> {
    of.values().copied().collect()
}

/// Differences on the samples that both have.
pub(super) fn over<U: Ord>(these: &BTreeMap<U, f64>, full: &BTreeMap<U, f64>) -> Vec<f64> {
    these.iter().filter_map(|(unit, value)| Some(value - full.get(unit)?)).collect()
}

/// The mean with Student's interval. Where all are alike they have no spread, and so no interval.
pub(super) fn mean_difference(differences: &[f64]) -> Estimate {
    let known = Estimate::of(differences);
    Estimate { interval: known.interval.filter(|_| !are_alike(differences)), ..known }
}

pub(super) fn are_alike(differences: &[f64]) -> bool {
    differences.windows(2).all(|pair| pair[0] == pair[1])
}
