use briquette_models::{ChatTemplate, Tokenizer};

use super::prompt::Prompt;
use crate::{
    Result, fingerprint,
    run::{ChatForm, Planned, RunFile, Work},
    tasks::{Question, Sample, Turn},
};

/// Questions with right answers, each behind a context that is compressed without it.
#[derive(Clone, Debug)]
pub struct Questions {
    name: String,
    prompts: Vec<Prompt>,
    skipped: Vec<String>,
}

impl Questions {
    /// Takes the tasks of a run file that ask after the compression, as messages of a user in this
    /// chat template if there is one. The same seed gives the same questions.
    ///
    /// # Errors
    /// Errors of the tasks, [`Error::RunFile`](crate::Error::RunFile) where no task asks after the
    /// compression, or a sample has no context or no answer, and
    /// [`Error::Setting`](crate::Error::Setting) for a template that does not write out what is
    /// said.
    pub fn read(
        file: &RunFile,
        tokenizer: &Tokenizer,
        template: Option<&ChatTemplate>,
        seed: u64,
    ) -> Result<Self> {
        let form = template.map(|template| ChatForm::new(template, tokenizer)).transpose()?;
        let (mut labels, mut prompts, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
        for Planned { label, work } in file.planned() {
            let Work::Ask { task, ask } = work else { continue };
            if !ask.contains(&Question::After) {
                continue;
            }
            let mut loaded = task.load(tokenizer, seed)?;
            for sample in &mut loaded.samples {
                if let Some(form) = &form {
                    form.around(sample);
                }
                let nothing = || {
                    let id = &sample.id;
                    let reason = "it has no context to compress, or no answer to compare";
                    file.error(format!("task `{label}`, sample `{id}`: {reason}"))
                };
                prompts.push(prompt(sample, tokenizer)?.ok_or_else(nothing)?);
            }
            skipped.extend(loaded.skipped);
            labels.push(label);
        }
        if prompts.is_empty() {
            let reason = "no task asks after the compression: add one with `ask = [\"after\"]`";
            return Err(file.error(format!("{reason}, as [[tasks.needle]]")));
        }
        let name = format!("{}: {}", file.file_name(), labels.join(", "));
        Ok(Self { name, prompts, skipped })
    }

    /// The name of the file and those of its tasks.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Contexts with their questions.
    pub fn count(&self) -> usize {
        self.prompts.len()
    }

    /// Tokens of the longest context.
    pub fn longest(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.length).max().unwrap_or(0)
    }

    /// Tokens that are fed behind a context at most.
    pub fn most_behind(&self) -> usize {
        let behind = |prompt: &Prompt| prompt.tokens.len().saturating_sub(prompt.length);
        self.prompts.iter().map(behind).max().unwrap_or(0)
    }

    /// Damaged samples, see [`Samples::skipped`](crate::tasks::Samples::skipped).
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }

    pub(super) fn prompts(&self) -> &[Prompt] {
        &self.prompts
    }

    /// Differs between questions and tokenizers.
    pub(super) fn fingerprint(&self) -> String {
        fingerprint::of(format!("{:?}", self.prompts).as_bytes())
    }
}

/// The context of a sample, and behind it its questions with their answers; `None` without a
/// context or an answer.
fn prompt(sample: &Sample, tokenizer: &Tokenizer) -> Result<Option<Prompt>> {
    let mut tokens = sample.context.clone();
    let length = tokens.len();
    let mut compared = Vec::new();
    for turn in &sample.turns {
        tokens.extend(&turn.question);
        for token in answer(turn, tokenizer)? {
            // It is expected behind the token before it.
            compared.extend((tokens.len() - length).checked_sub(1));
            tokens.push(token);
        }
    }
    // Nothing is expected behind the last answer.
    tokens.pop();
    Ok((length > 0 && !compared.is_empty()).then_some(Prompt { tokens, length, compared }))
}

/// The first right answer.
fn answer(turn: &Turn, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    if let Some(tokens) = &turn.tokens {
        return Ok(tokens.clone());
    }
    let text = turn.references.first().map_or("", String::as_str);
    Ok(tokenizer.encode(text, false)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{metrics::Metric, testing};

    fn turn(question: &[u32], answer: &[u32]) -> Turn {
        let turn = Turn::new(question.to_vec(), vec!["a".into()], Metric::ExactMatch, 4);
        Turn { tokens: Some(answer.to_vec()), ..turn }
    }

    #[test]
    fn answers_are_compared_and_questions_are_not() {
        let tokenizer = testing::tokenizer();
        let sample = |context: &[u32], turns: Vec<Turn>| Sample {
            id: "0".into(),
            axes: BTreeMap::new(),
            context: context.to_vec(),
            turns,
        };
        let two = sample(&[1, 2, 3], vec![turn(&[4, 5], &[6, 7]), turn(&[8], &[9])]);
        let expected =
            Prompt { tokens: vec![1, 2, 3, 4, 5, 6, 7, 8], length: 3, compared: vec![1, 2, 4] };
        assert_eq!(prompt(&two, &tokenizer).unwrap(), Some(expected));
        // An answer without tokens of its own is its text.
        let text = Turn { tokens: None, ..turn(&[4], &[]) };
        let found = prompt(&sample(&[1], vec![text]), &tokenizer).unwrap().unwrap();
        assert_eq!(found.compared[0], 0);
        for nothing in [sample(&[], vec![turn(&[4], &[5])]), sample(&[1], vec![turn(&[4], &[])])] {
            assert_eq!(prompt(&nothing, &tokenizer).unwrap(), None);
        }
    }
}
