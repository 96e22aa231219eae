use std::collections::BTreeSet;

use serde::Serialize;

use super::plan::Plan;
use crate::metrics::Metrics;

/// A prompt of a plan in tokens, for programs that are compared with this one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedPrompt<'a> {
    /// The label of the model.
    pub model: &'a str,
    /// The label of the task.
    pub task: &'a str,
    /// The seed.
    pub seed: u64,
    /// The sample of the task.
    pub sample: &'a str,
    /// Tokens that are compressed alone when the question comes after.
    pub context: &'a [u32],
    /// The questions.
    pub turns: Vec<PlannedTurn<'a>>,
}

/// A question of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedTurn<'a> {
    /// Its tokens.
    pub question: &'a [u32],
    /// Right answers.
    pub references: &'a [String],
    /// How the answer is scored.
    pub metric: &'a Metrics,
    /// Tokens generated at most.
    pub max_new_tokens: usize,
}

impl Plan {
    /// The prompts of tasks that ask, each once whatever the policies.
    pub fn prompts(&self) -> impl Iterator<Item = PlannedPrompt<'_>> {
        let mut known = BTreeSet::new();
        let models = self.models.iter().zip(0..);
        let units = models.flat_map(|(model, number)| {
            model.units.iter().map(move |unit| (model, unit, (number, unit.group, unit.sample)))
        });
        units.filter_map(move |(model, unit, place)| {
            let sample = model.sample(unit)?;
            let turns = sample.turns.iter().map(|turn| PlannedTurn {
                question: &turn.question,
                references: &turn.references,
                metric: &turn.metrics,
                max_new_tokens: turn.max_new_tokens,
            });
            known.insert(place).then(|| PlannedPrompt {
                model: &unit.key.model,
                task: &unit.key.task,
                seed: unit.key.seed,
                sample: &unit.key.sample,
                context: &sample.context,
                turns: turns.collect(),
            })
        })
    }
}
