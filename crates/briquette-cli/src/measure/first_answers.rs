//! The first answers on the full cache, which say whether a comparison will say anything.

use std::collections::BTreeMap;

use briquette_eval::{
    record::{Outcome, Record},
    run::{FIRST_PROMPTS, FULL, weak},
};

/// Sums of the scores of the first prompts, and how many they are, by model and task. Everything is
/// kept, so it matters not when the question comes.
#[derive(Default)]
pub(crate) struct FirstAnswers {
    scores: BTreeMap<(String, String), (f64, usize)>,
}

impl FirstAnswers {
    /// Looks at a record, and warns once where the full cache answers the first prompts of a task
    /// wrong.
    pub(crate) fn add(&mut self, record: &Record) -> Option<String> {
        let (key, Outcome::Answers { answers, .. }) = (&record.key, &record.outcome) else {
            return None;
        };
        if key.policy != FULL || answers.is_empty() {
            return None;
        }
        let score = answers.iter().map(|answer| answer.score).sum::<f64>() / answers.len() as f64;
        let task = (key.model.clone(), key.task.clone());
        let (sum, prompts) = self.scores.entry(task).or_default();
        *sum += score;
        *prompts += 1;
        let count = *prompts;
        (count == FIRST_PROMPTS).then(|| weak(&key.task, *sum / count as f64, count)).flatten()
    }
}
