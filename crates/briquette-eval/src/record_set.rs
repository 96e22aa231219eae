//! Which results of a run count, where one unit has several: a run, a page and a merge answer
//! alike.

use std::collections::HashMap;

use crate::{
    fingerprint,
    metrics::Metric,
    record::{Key, Outcome, Record},
};

/// The units that have a result.
#[derive(Clone, Debug, Default)]
pub struct RecordSet {
    /// Fingerprint of each result, `None` for a policy that cannot hold: a page need not hold all
    /// results.
    found: HashMap<Key, Option<String>>,
}

/// Relation of a result to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// The first of its unit.
    First,
    /// It says the same, but for seconds: the first counts.
    Again,
    /// Another reason why a policy cannot hold: the last counts.
    Newer,
    /// It says something else: one of them is wrong, and nobody knows which.
    Other,
}

impl RecordSet {
    /// Takes a result in. `of` says what it was measured on, where that is known.
    pub fn add(&mut self, record: &Record, fingerprint: &str) -> Arrived {
        let said = said(record, fingerprint);
        match self.found.get(&record.key) {
            None => {
                self.found.insert(record.key.clone(), said);
                Arrived::First
            }
            Some(None) if said.is_none() => Arrived::Newer,
            Some(before) if *before == said => Arrived::Again,
            Some(_) => Arrived::Other,
        }
    }

    /// Whether a unit has a result.
    pub fn contains(&self, key: &Key) -> bool {
        self.found.contains_key(key)
    }
}

/// Whether two results of a unit are the same answers, however they were scored.
pub(crate) fn same_answers(one: &Record, other: &Record) -> bool {
    let unscored = |record: &Record| {
        let mut record = record.clone();
        if let Outcome::Answers { answers, .. } = &mut record.outcome {
            for answer in answers {
                (answer.metric, answer.score) = (Metric::ExactMatch, 0.0);
                answer.beside.clear();
            }
        }
        said(&record, "")
    };
    unscored(one) == unscored(other)
}

/// Fingerprint of an outcome, without seconds, and without the spare room, which older versions do
/// not tell.
fn said(record: &Record, fingerprint: &str) -> Option<String> {
    let mut outcome = record.outcome.clone();
    match &mut outcome {
        Outcome::Unavailable { .. } => return None,
        Outcome::Answers { cache, prefill_seconds, decode_seconds, .. } => {
            (*prefill_seconds, *decode_seconds) = (Some(0.0), 0.0);
            cache.spare = None;
        }
        Outcome::Text { cache, .. } | Outcome::Fidelity { cache, .. } => cache.spare = None,
    }
    Some(fingerprint::of(format!("{fingerprint} {outcome:?}").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::CacheBytes;

    fn record(task: &str, outcome: Outcome, seconds: f64) -> Record {
        let key = Key {
            model: "m".into(),
            policy: "p".into(),
            budget: "-".into(),
            seed: 0,
            task: task.into(),
            sample: "0".into(),
            ask: None,
        };
        Record { key, outcome, seconds, began_seconds: None, ended_seconds: None }
    }

    #[test]
    fn the_first_counts_and_another_says_the_same() {
        let text_with = |nats: f32, spare| Outcome::Text {
            prompt: 1,
            nats: vec![nats],
            cache: CacheBytes { bytes: 1, spare, full: 2 },
        };
        let text = |nats| text_with(nats, Some(1));
        let mut set = RecordSet::default();
        assert_eq!(set.add(&record("t", text(0.5), 1.0), "of"), Arrived::First);
        assert_eq!(set.add(&record("t", text(0.5), 2.0), "of"), Arrived::Again);
        assert_eq!(set.add(&record("t", text_with(0.5, None), 1.0), "of"), Arrived::Again);
        assert_eq!(set.add(&record("t", text(0.25), 1.0), "of"), Arrived::Other);
        assert_eq!(set.add(&record("t", text(0.5), 1.0), "another"), Arrived::Other);
        assert_eq!(set.add(&record("u", text(0.25), 1.0), "of"), Arrived::First);
        assert!(set.contains(&record("u", text(0.0), 0.0).key));

        let cannot = |reason: &str| Outcome::Unavailable { reason: reason.into() };
        assert_eq!(set.add(&record("", cannot("a"), 0.0), "of"), Arrived::First);
        assert_eq!(set.add(&record("", cannot("b"), 0.0), "of"), Arrived::Newer);
    }
}
