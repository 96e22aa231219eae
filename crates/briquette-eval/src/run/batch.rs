//! Samples of one length, which run as rows of a batch.

use std::collections::BTreeMap;

use super::{
    ask::is_context_alone,
    plan::{ModelPlan, TaskData, Unit},
    tasks::{Planned, Work},
};
use crate::tasks::{Question, Sample};

/// How many samples are rows of a batch at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchLimit {
    /// So many.
    Rows(usize),
    /// As many as have so many tokens together, one at least.
    Tokens(usize),
}

impl BatchLimit {
    /// Rows of so many tokens.
    pub fn rows(self, tokens: usize) -> usize {
        match self {
            Self::Rows(rows) => rows.max(1),
            Self::Tokens(all) => (all / tokens.max(1)).max(1),
        }
    }
}

/// Samples that are measured at once under one policy.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    /// The units of each sample: one, and under a policy that keeps everything the question before
    /// and after, between which it makes no difference.
    pub(super) rows: Vec<Vec<&'a Unit>>,
}

impl Batch<'_> {
    pub(super) fn units(&self) -> impl Iterator<Item = &Unit> {
        self.rows.iter().flatten().copied()
    }
}

/// Batches of the same samples whose policies share a prefill.
#[derive(Debug)]
pub(super) struct Round<'a> {
    pub(super) batches: Vec<Batch<'a>>,
}

/// Rows of a batch are alike in group, policy, question, and tokens of the first prompt: none is
/// padded there.
type Alike = (usize, usize, Option<Question>, usize);

/// Units in batches, in the order of the first unit of each. A sample runs alone whose questions
/// follow each other, whose policy starts from a prefix or has a budget in bytes, which is one for
/// all rows, and whatever asks nothing.
pub(super) fn batches<'a>(
    plan: &ModelPlan,
    tasks: &[Planned],
    units: impl Iterator<Item = &'a Unit>,
    limit: BatchLimit,
) -> Vec<Batch<'a>> {
    let mut rows: Vec<Vec<&'a Unit>> = Vec::new();
    for unit in units {
        let place = |unit: &Unit| (unit.group, unit.sample, unit.entry);
        match rows.last_mut() {
            Some(row)
                if place(row[0]) == place(unit) && plan.entries[unit.entry].entry.keeps_all() =>
            {
                row.push(unit);
            }
            _ => rows.push(vec![unit]),
        }
    }
    let mut batches: Vec<Batch<'a>> = Vec::new();
    let mut open: BTreeMap<Alike, usize> = BTreeMap::new();
    for row in rows {
        let unit = row[0];
        let Some(sample) = batched(plan, tasks, unit) else {
            batches.push(Batch { rows: vec![row] });
            continue;
        };
        let alike = (unit.group, unit.entry, unit.key.ask, first_prompt(sample, unit.key.ask));
        match open.get(&alike).map(|at| &mut batches[*at]) {
            Some(batch) if batch.rows.len() < limit.rows(sample.tokens()) => batch.rows.push(row),
            _ => {
                open.insert(alike, batches.len());
                batches.push(Batch { rows: vec![row] });
            }
        }
    }
    batches
}

/// Batches in rounds of so many policies at most, in the order of the first batch of each. A batch
/// is a round by itself whose prompt comes in chunks, or whose policy starts from a prefix or does
/// not attend to a prompt as others do, and whatever asks nothing.
pub(super) fn rounds<'a>(
    plan: &ModelPlan,
    tasks: &[Planned],
    batches: Vec<Batch<'a>>,
    policies: usize,
) -> Vec<Round<'a>> {
    let mut rounds: Vec<Round<'a>> = Vec::new();
    let mut open: BTreeMap<_, usize> = BTreeMap::new();
    for batch in batches {
        let shared = match batch.units().next() {
            Some(unit) if shares(plan, tasks, unit) => {
                let samples: Vec<usize> =
                    batch.rows.iter().flat_map(|row| row.first()).map(|unit| unit.sample).collect();
                Some((unit.group, unit.key.ask, samples))
            }
            _ => None,
        };
        let at = shared.as_ref().and_then(|shared| open.get(shared)).copied();
        match at.map(|at| &mut rounds[at]) {
            Some(round) if round.batches.len() < policies => round.batches.push(batch),
            _ => {
                open.extend(shared.map(|shared| (shared, rounds.len())));
                rounds.push(Round { batches: vec![batch] });
            }
        }
    }
    rounds
}

/// Whether the first prompt of a unit may be read once for several policies.
fn shares(plan: &ModelPlan, tasks: &[Planned], unit: &Unit) -> bool {
    let Some(sample) = asked(plan, tasks, unit) else { return false };
    let planned = &plan.entries[unit.entry];
    let chunk = plan.opened.spec.chunk.unwrap_or(usize::MAX);
    planned.prefix.is_none()
        && planned.entry.policy.can_share_prefill()
        && first_prompt(sample, unit.key.ask) <= chunk
}

/// The sample of a unit that may run beside others.
fn batched<'p>(plan: &'p ModelPlan, tasks: &[Planned], unit: &Unit) -> Option<&'p Sample> {
    let sample = asked(plan, tasks, unit)?;
    let planned = &plan.entries[unit.entry];
    let alone =
        sample.turns.len() > 1 || planned.prefix.is_some() || planned.entry.rows_share_budget();
    (!alone).then_some(sample)
}

/// The sample that a unit asks.
fn asked<'p>(plan: &'p ModelPlan, tasks: &[Planned], unit: &Unit) -> Option<&'p Sample> {
    let group = &plan.groups[unit.group];
    match (&tasks[group.task].work, &group.data) {
        (Work::Ask { .. }, TaskData::Samples(samples)) => Some(&samples[unit.sample]),
        _ => None,
    }
}

/// Tokens of the first prompt of a sample.
fn first_prompt(sample: &Sample, ask: Option<Question>) -> usize {
    let question = || sample.turns.first().map_or(0, |turn| turn.question.len());
    match ask {
        Some(ask) if is_context_alone([&sample.context[..]].into_iter(), ask) => {
            sample.context.len()
        }
        _ => sample.context.len() + question(),
    }
}
