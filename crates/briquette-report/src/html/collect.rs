use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use briquette_eval::{
    metrics::{Metric, Metrics},
    record::{Answer, CacheBytes, KeptTokens, Key, Outcome, Record, scores_beside},
    record_set::{Arrived, RecordSet},
    wall_seconds,
};

use super::{
    key::{Column, Row, Unit},
    natural,
};
use crate::{Error, Result};

/// Lengths that are an axis; more are the lengths of texts as they come.
const LENGTHS: RangeInclusive<usize> = 2..=24;
/// Answers kept a policy, budget, task and question, for the table of samples.
const ANSWERS_KEPT: usize = 12;
/// Characters kept of what a model said, and of a reference.
const CHARACTERS_KEPT: usize = 200;
/// References kept of an answer.
const REFERENCES_KEPT: usize = 3;

/// Records summed up as they come: what a page needs of them, so that a run need not fit into
/// memory. What is shown does not depend on the order of the records.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// Records counted.
    pub(super) records: usize,
    /// Records left out, since one of their unit came before.
    pub(super) duplicates: usize,
    seen: RecordSet,
    pub(super) seeds: BTreeSet<u64>,
    /// Samples of each task.
    pub(super) units: BTreeMap<String, BTreeSet<Unit>>,
    pub(super) scores: BTreeMap<Row, BTreeMap<Column, Scores>>,
    pub(super) texts: BTreeMap<Row, BTreeMap<String, Texts>>,
    pub(super) fidelity: BTreeMap<Row, BTreeMap<String, Fidelities>>,
    pub(super) memory: BTreeMap<Row, Memory>,
    /// Seconds of all records of a row.
    pub(super) seconds: BTreeMap<Row, f64>,
    /// Begin and end of each record's measurement; `None` for one that does not say when it ended.
    spans: Vec<Option<[f64; 2]>>,
    /// The metrics of each turn of a sample, by model, task and sample.
    metrics: BTreeMap<(String, String, Unit), Vec<Metrics>>,
    /// Why a policy cannot hold, and in which tasks.
    pub(super) unavailable: BTreeMap<Row, BTreeMap<String, BTreeSet<String>>>,
    /// By model and task.
    pub(super) kept: BTreeMap<(String, String), KeptTexts>,
    pub(super) answers: usize,
    pub(super) samples: BTreeMap<Row, BTreeMap<Column, BTreeMap<Unit, Vec<Shown>>>>,
}

/// Answers of a row to a task.
#[derive(Debug, Default)]
pub(super) struct Scores {
    /// The score of a sample is the mean over its turns: they share a context, so they are no
    /// trials of their own.
    pub(super) by_unit: BTreeMap<Unit, f64>,
    /// The metrics of that score.
    pub(super) metrics: BTreeSet<Metric>,
    /// Scores by other metrics, likewise.
    pub(super) beside: BTreeMap<Metric, BTreeMap<Unit, f64>>,
    /// The share of right tokens, the mean over turns that have it.
    pub(super) right_tokens: BTreeMap<Unit, f64>,
    /// `[turn][sample]`, for samples of several turns.
    pub(super) by_turn: Vec<Vec<f64>>,
    /// By length and depth, for samples that have both.
    pub(super) places: BTreeMap<(u64, u64), Vec<f64>>,
    /// Samples by their length, where they have it.
    pub(super) lengths: BTreeMap<u64, BTreeSet<Unit>>,
    pub(super) prefill: BTreeMap<Unit, f64>,
    /// Milliseconds a decoded token, of each sample that decoded any.
    pub(super) decode: BTreeMap<Unit, f64>,
}

/// Continued texts of a row.
#[derive(Debug, Default)]
pub(super) struct Texts {
    /// Nats per token.
    pub(super) by_unit: BTreeMap<Unit, f64>,
    /// By position the sum over windows, and the windows that reach it.
    sums: Vec<(f64, u32)>,
}

/// Fidelity of a row.
#[derive(Debug, Default)]
pub(super) struct Fidelities {
    /// The mean over layers.
    pub(super) error: BTreeMap<Unit, f64>,
    /// The mean over continued tokens, in nats.
    pub(super) kl: BTreeMap<Unit, f64>,
    pub(super) agreement: BTreeMap<Unit, f64>,
    /// The mean over heads; without samples of which nothing is dropped.
    pub(super) overlap: BTreeMap<Unit, f64>,
    /// `[layer][sample]`.
    pub(super) layer_error: Vec<Vec<f64>>,
    /// `[layer][sample]`, the mean over heads.
    pub(super) layer_overlap: Vec<Vec<f64>>,
    /// `[layer][head]`: the sum over samples, and the samples of which it is known.
    pub(super) held: (Vec<Vec<f64>>, usize),
}

/// Bytes of caches, summed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// With the spare room.
    all: f64,
    spare: f64,
    full: f64,
    pub(super) count: usize,
    /// Records that tell the spare room.
    told: usize,
}

impl Memory {
    fn add(&mut self, cache: CacheBytes) {
        self.all += cache.bytes as f64;
        self.spare += cache.spare.unwrap_or(0) as f64;
        self.full += cache.full as f64;
        self.count += 1;
        self.told += usize::from(cache.spare.is_some());
    }

    /// Free bytes per sample; `None` where a record does not tell.
    pub(super) fn spare(&self) -> Option<f64> {
        self.tells().then(|| self.spare / self.count.max(1) as f64)
    }

    /// Bytes kept per sample, with the spare room where a record does not tell it.
    pub(super) fn held(&self) -> f64 {
        let spare = if self.tells() { self.spare } else { 0.0 };
        (self.all - spare) / self.count.max(1) as f64
    }

    /// Bytes that full caches would hold, per sample.
    pub(super) fn full(&self) -> f64 {
        self.full / self.count.max(1) as f64
    }

    /// Whether every record tells the spare room.
    pub(super) fn tells(&self) -> bool {
        self.told == self.count
    }
}

/// Tokens kept of one sample's prompt: the first sample by seed and name.
#[derive(Debug)]
pub(super) struct KeptTexts {
    pub(super) unit: Unit,
    pub(super) tokens: Vec<String>,
    /// The share of heads that hold each token.
    pub(super) shares: BTreeMap<Row, Vec<f32>>,
}

/// An answer, cut to what a page can show.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    /// From 1; 0 where there is but one.
    pub(super) turn: usize,
    pub(super) said: String,
    pub(super) references: Vec<String>,
    pub(super) metric: &'static str,
    pub(super) score: f64,
    /// Scores by other metrics.
    pub(super) beside: Vec<(&'static str, f64)>,
}

impl Collected {
    /// Counts a record.
    ///
    /// # Errors
    /// [`Error::Page`] for records that contradict each other.
    pub(super) fn push(&mut self, record: Record) -> Result<()> {
        let arrived = self.seen.add(&record, "");
        let span = record.span();
        let Record { key, outcome, seconds, .. } = record;
        match arrived {
            Arrived::First => self.records += 1,
            Arrived::Newer => self.duplicates += 1,
            Arrived::Again => {
                self.duplicates += 1;
                return Ok(());
            }
            Arrived::Other => {
                let message = format!("{key}: the results of two lines are not the same");
                return Err(Error::Page { message });
            }
        }
        let (row, unit) = (Row::of(&key), Unit::of(&key));
        if let Outcome::Unavailable { reason } = outcome {
            let reasons = self.unavailable.entry(row).or_default();
            if arrived == Arrived::Newer {
                reasons.values_mut().for_each(|tasks| {
                    tasks.remove(&key.task);
                });
                reasons.retain(|_, tasks| !tasks.is_empty());
            }
            reasons.entry(reason).or_default().insert(key.task);
            return Ok(());
        }
        self.seeds.insert(key.seed);
        self.units.entry(key.task.clone()).or_default().insert(unit.clone());
        *self.seconds.entry(row.clone()).or_default() += seconds;
        self.spans.push(span);
        match outcome {
            Outcome::Answers {
                axes,
                answers,
                cache,
                prefill_seconds,
                decode_seconds,
                decoded_tokens,
            } => {
                self.hold(&row, cache);
                self.check_metrics(&key, &unit, &answers)?;
                let tasks = self.scores.entry(row.clone()).or_default();
                let scores = tasks.entry(Column::of(&key)).or_default();
                scores.push(&unit, &axes, &answers);
                if let Some(seconds) = prefill_seconds {
                    scores.prefill.insert(unit.clone(), seconds);
                }
                if decoded_tokens > 0 {
                    let each = 1000.0 * decode_seconds / decoded_tokens as f64;
                    scores.decode.insert(unit.clone(), each);
                }
                self.answers += answers.len();
                self.show(row, Column::of(&key), unit, answers);
            }
            Outcome::Text { nats, cache, .. } => {
                self.hold(&row, cache);
                let tasks = self.texts.entry(row).or_default();
                tasks.entry(key.task.clone()).or_default().push(unit, &nats);
            }
            Outcome::Fidelity { output_error, kl, agreement, overlap, kept, cache } => {
                self.hold(&row, cache);
                let tasks = self.fidelity.entry(row.clone()).or_default();
                let found = tasks.entry(key.task.clone()).or_default();
                found.error.insert(unit.clone(), mean(output_error.iter().copied()));
                found.kl.insert(unit.clone(), mean(kl.iter().map(|kl| f64::from(*kl))));
                found.agreement.insert(unit.clone(), agreement);
                found.layers(&output_error, &overlap, &kept.heads);
                if overlap.iter().any(|heads| !heads.is_empty()) {
                    found.overlap.insert(unit.clone(), mean(overlap.iter().flatten().copied()));
                }
                self.keep(row, key.task.clone(), unit, kept)?;
            }
            Outcome::Unavailable { .. } => {}
        }
        Ok(())
    }

    /// Seconds in which something was measured; `None` if a record does not say when it ended.
    pub(super) fn wall_seconds(&self) -> Option<f64> {
        wall_seconds(self.spans.iter().copied())
    }

    /// Refuses answers to one sample that were scored by other metrics under another policy: their
    /// means could not be compared.
    fn check_metrics(&mut self, key: &Key, unit: &Unit, answers: &[Answer]) -> Result<()> {
        let found: Vec<Metrics> = answers.iter().map(Answer::metrics).collect();
        let place = (key.model.clone(), key.task.clone(), unit.clone());
        let first = self.metrics.entry(place).or_insert_with(|| found.clone());
        if *first == found {
            return Ok(());
        }
        let named = |of: &[Metrics]| of.first().map_or_else(String::new, ToString::to_string);
        let message = format!(
            "{key}: scored by {}, under another policy by {}; `briquette run` without --shard scores the answers of a run \
             alike, and `briquette score` by any metric",
            named(&found),
            named(first)
        );
        Err(Error::Page { message })
    }

    fn hold(&mut self, row: &Row, cache: CacheBytes) {
        self.memory.entry(row.clone()).or_default().add(cache);
    }

    fn show(&mut self, row: Row, column: Column, unit: Unit, answers: Vec<Answer>) {
        let shown = self.samples.entry(row).or_default().entry(column).or_default();
        let several = answers.len() > 1;
        let turn = |(turn, answer): (usize, Answer)| Shown {
            turn: if several { turn } else { 0 },
            said: cut(answer.said),
            references: answer.references.into_iter().take(REFERENCES_KEPT).map(cut).collect(),
            metric: answer.metric.name(),
            score: answer.score,
            beside: answer.beside.iter().map(|(by, score)| (by.name(), *score)).collect(),
        };
        shown.insert(unit, (1..).zip(answers).map(turn).collect());
        if shown.len() > ANSWERS_KEPT {
            shown.pop_last();
        }
    }

    /// Keeps the first sample of each model and task, by seed and name.
    fn keep(&mut self, row: Row, task: String, unit: Unit, kept: KeptTokens) -> Result<()> {
        if kept.tokens.is_empty() {
            return Ok(());
        }
        let (unit, tokens) = (&unit, &kept.tokens);
        let begin =
            || KeptTexts { unit: unit.clone(), tokens: tokens.clone(), shares: BTreeMap::new() };
        let place = (row.model.clone(), task.clone());
        let texts = self.kept.entry(place).or_insert_with(begin);
        match texts.unit.cmp(unit) {
            Ordering::Less => return Ok(()),
            Ordering::Equal => {}
            Ordering::Greater => *texts = begin(),
        }
        if kept.share.len() != tokens.len() || *tokens != texts.tokens {
            let message = format!(
                "{}, {task}, sample {}: {} kept {} shares of {} tokens, another policy had a prompt of {} tokens",
                row.model,
                unit.sample,
                row.label(),
                kept.share.len(),
                kept.tokens.len(),
                texts.tokens.len()
            );
            return Err(Error::Page { message });
        }
        texts.shares.insert(row, kept.share);
        Ok(())
    }

    /// How many of these units are not there.
    pub(super) fn missing(&self, plan: &[Key]) -> usize {
        plan.iter().filter(|key| !self.seen.contains(key)).count()
    }

    /// Every row of which there is anything, save those that cannot hold.
    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.memory.keys()
    }

    /// Each value once, in the order of the rows.
    pub(super) fn each<'a>(&'a self, of: impl Fn(&'a Row) -> &'a str) -> Vec<&'a str> {
        let mut values: Vec<&str> = Vec::new();
        for value in self.rows().map(of) {
            if !values.contains(&value) {
                values.push(value);
            }
        }
        values
    }

    /// The tasks with samples, in order.
    pub(super) fn tasks(&self) -> Vec<&str> {
        let mut tasks: Vec<&str> = self.units.keys().map(String::as_str).collect();
        tasks.sort_by(|a, b| natural::compare(a, b));
        tasks
    }

    /// Lengths of a task's samples; none where they are no axis.
    pub(super) fn lengths(&self, model: &str, column: &Column) -> BTreeSet<u64> {
        let rows = self.scores.iter().filter(|(row, _)| row.model == model);
        let scores = rows.filter_map(|(_, tasks)| tasks.get(column));
        let lengths: BTreeSet<u64> = scores.flat_map(|all| all.lengths.keys().copied()).collect();
        if LENGTHS.contains(&lengths.len()) { lengths } else { BTreeSet::new() }
    }

    /// The tasks with answers, and when they were asked.
    pub(super) fn columns(&self) -> Vec<Column> {
        let columns: BTreeSet<&Column> = self.scores.values().flat_map(BTreeMap::keys).collect();
        columns.into_iter().cloned().collect()
    }
}

impl Scores {
    /// The lowest that a score can be.
    pub(super) fn lowest(&self) -> f64 {
        self.metrics.iter().map(|metric| *metric.range().start()).fold(0.0, f64::min)
    }

    fn push(&mut self, unit: &Unit, axes: &BTreeMap<String, u64>, answers: &[Answer]) {
        let score = mean(answers.iter().map(|answer| answer.score));
        self.by_unit.insert(unit.clone(), score);
        self.metrics.extend(answers.iter().map(|answer| answer.metric));
        for (metric, scores) in scores_beside(answers) {
            let by_unit = self.beside.entry(metric).or_default();
            by_unit.insert(unit.clone(), mean(scores.into_iter()));
        }
        let right: Vec<f64> = answers.iter().filter_map(|answer| answer.right_tokens).collect();
        if !right.is_empty() {
            self.right_tokens.insert(unit.clone(), mean(right.into_iter()));
        }
        if answers.len() > 1 {
            for (turn, answer) in paired(&mut self.by_turn, answers) {
                turn.push(answer.score);
            }
        }
        if let Some(length) = axes.get("length") {
            self.lengths.entry(*length).or_default().insert(unit.clone());
            if let Some(depth) = axes.get("depth") {
                self.places.entry((*length, *depth)).or_default().push(score);
            }
        }
    }
}

impl Texts {
    fn push(&mut self, unit: Unit, nats: &[f32]) {
        self.by_unit.insert(unit, mean(nats.iter().map(|nats| f64::from(*nats))));
        for ((sum, count), nats) in paired(&mut self.sums, nats) {
            *sum += f64::from(*nats);
            *count += 1;
        }
    }

    /// The mean of all tokens up to each position, at about `points` positions, from 1.
    pub(super) fn cumulative(&self, points: usize) -> Vec<(usize, f64)> {
        let every = self.sums.len().div_ceil(points.max(1)).max(1);
        let (mut sum, mut count, mut curve) = (0.0, 0.0, Vec::new());
        for (position, (nats, windows)) in (1..).zip(&self.sums) {
            sum += nats;
            count += f64::from(*windows);
            if position % every == 0 || position == self.sums.len() {
                curve.push((position, sum / f64::max(count, 1.0)));
            }
        }
        curve
    }
}

impl Fidelities {
    fn layers(&mut self, error: &[f64], overlap: &[Vec<f64>], heads: &[Vec<usize>]) {
        for (layer, error) in paired(&mut self.layer_error, error) {
            layer.push(*error);
        }
        for (layer, heads) in paired(&mut self.layer_overlap, overlap) {
            if !heads.is_empty() {
                layer.push(mean(heads.iter().copied()));
            }
        }
        let (sums, samples) = &mut self.held;
        if heads.is_empty() {
            return;
        }
        *samples += 1;
        for (sums, held) in paired(sums, heads) {
            for (sum, held) in paired(sums, held) {
                *sum += *held as f64;
            }
        }
    }

    /// Tokens each head holds, `[layer][head]`, the mean over samples.
    pub(super) fn heads(&self) -> Vec<Vec<f64>> {
        let samples = self.held.1.max(1) as f64;
        let layer = |sums: &Vec<f64>| sums.iter().map(|sum| sum / samples).collect();
        self.held.0.iter().map(layer).collect()
    }
}

/// Pairs of what was summed up so far, which grows where it is too short, and what comes now.
fn paired<'a, S: Clone + Default, T>(
    sums: &'a mut Vec<S>,
    new: &'a [T],
) -> impl Iterator<Item = (&'a mut S, &'a T)> {
    sums.resize(sums.len().max(new.len()), S::default());
    sums.iter_mut().zip(new)
}

/// 0 of no number.
pub(super) fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = numbers.fold((0.0, 0.0), |(sum, count), number| (sum + number, count + 1.0));
    sum / f64::max(count, 1.0)
}

fn cut(text: String) -> String {
    match text.char_indices().nth(CHARACTERS_KEPT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
