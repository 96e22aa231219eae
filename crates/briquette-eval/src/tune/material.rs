use briquette_models::Model;
use rand::seq::SliceRandom;

use super::{prompt::Prompt, questions::Questions};
use crate::{
    Error, Result, fidelity,
    tasks::{seed, text::Text},
};

/// The prompts candidates are measured on.
#[derive(Clone, Copy, Debug)]
pub enum Material<'a> {
    /// A text to continue.
    Text(&'a Text),
    /// Questions behind contexts.
    Questions(&'a Questions),
}

impl Material<'_> {
    /// The name of the text, or of the questions.
    pub fn name(&self) -> &str {
        match self {
            Self::Text(text) => text.name(),
            Self::Questions(questions) => questions.name(),
        }
    }

    /// Whether questions are asked.
    pub fn asks(&self) -> bool {
        matches!(self, Self::Questions(_))
    }

    /// As many prompts as the plan has windows, in an order that the seed draws.
    pub(super) fn prompts(
        &self,
        plan: &fidelity::Plan,
        seed: u64,
        model: &Model,
    ) -> Result<Vec<Prompt>> {
        let mut prompts: Vec<Prompt> = match self {
            Self::Text(text) => {
                let context = model.config().max_position_embeddings;
                let windows = plan.windows(text, context)?.into_iter();
                let prompt = |tokens: Vec<u32>| {
                    let behind = tokens.len().saturating_sub(plan.prompt);
                    Prompt { tokens, length: plan.prompt, compared: (0..behind).collect() }
                };
                windows.map(|window| prompt(window.tokens)).collect()
            }
            Self::Questions(questions) => questions.prompts().to_vec(),
        };
        if plan.windows == 0 || plan.windows > prompts.len() {
            let reason = format!("{} asked for, there are {}", plan.windows, prompts.len());
            return Err(Error::Setting { name: "samples", reason });
        }
        prompts.shuffle(&mut seed::rng(&[seed]));
        prompts.truncate(plan.windows);
        let context = model.config().max_position_embeddings;
        let mut lengths = prompts.iter().map(|prompt| prompt.tokens.len());
        match lengths.find(|length| *length > context) {
            Some(length) => Err(Error::ContextTooShort { length, context }),
            None => Ok(prompts),
        }
    }
}
