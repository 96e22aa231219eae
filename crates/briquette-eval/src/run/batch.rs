//! Samples of about one length, which run as rows of a batch.

use std::collections::BTreeMap;

use super::{
    ask::is_context_alone,
    candidate::FULL,
    plan::{ModelPlan, Unit},
    weak::FIRST_PROMPTS,
};
use crate::tasks::{Question, Sample};

/// How many samples are rows of a batch at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchLimit {
    /// So many.
    Rows(usize),
    /// As many as have so many tokens together, one at least.
    Tokens(usize),
    /// As many as have so many bytes of keys and values together before any are compressed, one at
    /// least.
    Bytes(u64),
}

impl BatchLimit {
    /// Rows of so many tokens, of each of which a full cache holds so many bytes.
    pub fn rows(self, tokens: usize, bytes_of_token: usize) -> usize {
        let rows = match self {
            Self::Rows(rows) => rows,
            Self::Tokens(all) => all / tokens.max(1),
            Self::Bytes(all) => {
                let row = tokens.saturating_mul(bytes_of_token).max(1);
                usize::try_from(all).unwrap_or(usize::MAX) / row
            }
        };
        rows.max(1)
    }
}

/// The part of a prompt that may be padding, so that it is a row beside a longer one.
const PADDING: usize = 16;

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

/// Rows of a batch are alike in group, policy, and question.
type Alike = (usize, usize, Option<Question>);

/// A batch that has room for more rows.
#[derive(Clone, Copy)]
struct Open {
    /// Its place among the batches.
    at: usize,
    /// Tokens of the first prompt of its first row.
    tokens: usize,
}

impl Open {
    /// Whether a first prompt of so many tokens differs little from that of its first row.
    fn fits(self, tokens: usize) -> bool {
        tokens.abs_diff(self.tokens) <= self.tokens / PADDING
    }
}

/// Units in batches, in the order of the first unit of each. The first prompts of a batch differ
/// from its first row's by a sixteenth at most. A sample runs alone whose questions follow each
/// other, whose policy starts from a prefix or has a budget in bytes, which is one for all rows,
/// and whatever asks nothing.
pub(super) fn batches<'a>(
    plan: &ModelPlan,
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
    let bytes_of_token = plan.opened.bytes_of_token();
    let mut open: BTreeMap<Alike, Vec<Open>> = BTreeMap::new();
    for row in rows {
        let unit = row[0];
        let Some(sample) = batched(plan, unit) else {
            batches.push(Batch { rows: vec![row] });
            continue;
        };
        let (tokens, most) =
            (first_prompt(sample, unit.key.ask), limit.rows(sample.tokens(), bytes_of_token));
        let open = open.entry((unit.group, unit.entry, unit.key.ask)).or_default();
        open.retain(|open| batches[open.at].rows.len() < most);
        match open.iter().find(|open| open.fits(tokens)) {
            Some(open) => batches[open.at].rows.push(row),
            None => {
                open.push(Open { at: batches.len(), tokens });
                batches.push(Batch { rows: vec![row] });
            }
        }
    }
    batches
}

/// Batches in rounds of at most so many policies: first those in which the full cache answers the
/// first prompts of a task, which say whether the others say anything, then in the order of the
/// first batch of each. A batch is a round by itself whose prompt comes in chunks, or whose policy
/// starts from a prefix or does not attend to a prompt as others do, and whatever asks nothing.
pub(super) fn rounds<'a>(
    plan: &ModelPlan,
    batches: Vec<Batch<'a>>,
    policies: usize,
) -> Vec<Round<'a>> {
    let mut rounds: Vec<Round<'a>> = Vec::new();
    let mut open: BTreeMap<_, usize> = BTreeMap::new();
    for batch in batches {
        let shared = match batch.units().next() {
            Some(unit) if shares(plan, unit) => {
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
    rounds.sort_by_cached_key(|round| !round.batches.iter().any(|batch| is_first(plan, batch)));
    rounds
}

/// Whether the full cache answers one of the first prompts of a task in this batch.
fn is_first(plan: &ModelPlan, batch: &Batch<'_>) -> bool {
    let first = |unit: &Unit| {
        let task = plan.groups[unit.group].task;
        unit.key.policy == FULL
            && unit.sample < FIRST_PROMPTS
            && plan.sample(unit).is_some()
            && plan.groups[..unit.group].iter().all(|before| before.task != task)
    };
    batch.units().any(first)
}

/// Whether the first prompt of a unit may be read once for several policies: not where values lie
/// in keys, nor beside recurrent layers.
fn shares(plan: &ModelPlan, unit: &Unit) -> bool {
    let Some(sample) = plan.sample(unit) else { return false };
    let planned = &plan.entries[unit.entry];
    let chunk = plan.opened.spec.chunk.unwrap_or(usize::MAX);
    planned.prefix.is_none()
        && plan.opened.config.latent.is_none()
        && plan.opened.config.delta_net.is_none()
        && planned.entry.policy.can_share_prefill()
        && first_prompt(sample, unit.key.ask) <= chunk
}

/// The sample of a unit that may run beside others.
fn batched<'p>(plan: &'p ModelPlan, unit: &Unit) -> Option<&'p Sample> {
    let sample = plan.sample(unit)?;
    let planned = &plan.entries[unit.entry];
    let alone =
        sample.turns.len() > 1 || planned.prefix.is_some() || planned.entry.rows_share_budget();
    (!alone).then_some(sample)
}

fn first_prompt(sample: &Sample, ask: Option<Question>) -> usize {
    let question = || sample.turns.first().map_or(0, |turn| turn.question.len());
    match ask {
        Some(ask) if is_context_alone([&sample.context[..]].into_iter(), ask) => {
            sample.context.len()
        }
        _ => sample.context.len() + question(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_one_row_at_least() {
        let rows = |limit: BatchLimit| limit.rows(1024, 100);
        assert_eq!(rows(BatchLimit::Rows(3)), 3);
        assert_eq!(rows(BatchLimit::Tokens(4096)), 4);
        assert_eq!(rows(BatchLimit::Bytes(512_000)), 5);
        for limit in [BatchLimit::Rows(0), BatchLimit::Tokens(7), BatchLimit::Bytes(7)] {
            assert_eq!(rows(limit), 1);
        }
        // A token of no bytes, and more bytes than there are numbers for.
        assert_eq!(BatchLimit::Bytes(9).rows(0, 0), 9);
        assert_eq!(BatchLimit::Bytes(9).rows(usize::MAX, usize::MAX), 1);
    }

    #[test]
    fn a_sixteenth_of_a_row_may_be_padding() {
        let open = Open { at: 0, tokens: 1024 };
        assert!(open.fits(960) && open.fits(1024) && open.fits(1088));
        assert!(!open.fits(959) && !open.fits(1089));
    }
}
