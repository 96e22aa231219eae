use briquette::KvCache;
use briquette_models::{
    GenerateOptions, Instruction, Model, Tokenizer, generate_batch, prefill, reconstruct,
};

use crate::{
    Error, Result,
    cache_bytes::CacheBytes,
    fingerprint,
    grid::{Answer, Axes, Entry, Question},
    journal::Steps,
    tasks::needle::{NeedlePrompt, NeedleTask},
};

/// Answers by the fingerprint of the policy and that of the prompt.
pub type Answers = Steps<(String, String, Question), Answer>;

/// Measures every entry of the grid on the same prompts, save for answers that `kept` holds.
///
/// `batch` prompts run at once. `on_answers` hears after each batch of the entry that ran, and of
/// how many prompts it answered: [`Axes::prompts`] in all, twice that (question before and after)
/// for entries that compress.
///
/// # Errors
/// [`Error::Grid`] and [`Error::ContextTooShort`] before anything runs; what [`NeedleTask::prompt`]
/// refuses; [`Error::Model`] if the model or a cache fails.
pub fn run(
    model: &Model,
    tokenizer: &Tokenizer,
    task: &NeedleTask<'_>,
    axes: &Axes,
    batch: usize,
    kept: &mut Answers,
    mut on_answers: impl FnMut(&Entry, usize),
) -> Result<Vec<Answer>> {
    axes.check()?;
    let context = model.config().max_position_embeddings;
    if let Some(&length) = axes.lengths.iter().find(|length| **length > context) {
        return Err(Error::ContextTooShort { length, context });
    }
    let mut groups = axes
        .groups()
        .iter()
        .map(|places| places.iter().map(|place| task.prompt(*place)).collect())
        .collect::<Result<Vec<Vec<NeedlePrompt>>>>()?;
    for prompts in &mut groups {
        prompts.sort_by_key(|prompt| prompt.context.len());
    }

    let runner = Runner { model, tokenizer };
    let mut answers = Vec::new();
    for prompts in &groups {
        for entry in &axes.entries {
            let policy = fingerprint::of_policy(&entry.policy);
            let key =
                |prompt: &NeedlePrompt, question| (policy.clone(), of_prompt(prompt), question);
            let questions: &[Question] = match entry.keeps_all() {
                true => &[Question::After],
                false => &[Question::Before, Question::After],
            };
            let first = answers.len();
            let rows = if entry.rows_share_budget() { 1 } else { batch.max(1) };
            // Rows of one length need no padding, and are attended faster for it.
            let equal = prompts.chunk_by(|a, b| a.context.len() == b.context.len());
            for prompts in equal.flat_map(|prompts| prompts.chunks(rows)) {
                for &question in questions {
                    let there = |prompt| kept.get(&key(prompt, question)).is_some();
                    if !prompts.iter().all(there) {
                        let made = match question {
                            Question::Before => runner.before(entry, prompts)?,
                            Question::After => runner.after(entry, prompts)?,
                        };
                        for (prompt, answer) in prompts.iter().zip(made) {
                            kept.push(key(prompt, question), answer)?;
                        }
                    }
                    on_answers(entry, prompts.len());
                    let found =
                        prompts.iter().filter_map(|prompt| kept.get(&key(prompt, question)));
                    // A policy may have been measured under another label.
                    let (label, budget) = (&entry.label, entry.budget());
                    let found = found.map(|answer| Answer {
                        policy: label.clone(),
                        budget: budget.clone(),
                        ..answer.clone()
                    });
                    answers.extend(found);
                }
                if entry.keeps_all() {
                    let from = answers.len() - prompts.len();
                    let before: Vec<Answer> =
                        answers[from..].iter().map(Answer::asked_before).collect();
                    answers.extend(before);
                }
            }
            answers[first..].sort_by_key(|answer| (answer.sample, answer.depth, answer.question));
        }
    }
    kept.finish()?;
    Ok(answers)
}

fn of_prompt(prompt: &NeedlePrompt) -> String {
    let tokens = [&prompt.context[..], &prompt.question, &prompt.answer];
    fingerprint::of(format!("{:?} {tokens:?}", prompt.place).as_bytes())
}

/// Asks a model.
pub(crate) struct Runner<'a> {
    pub(crate) model: &'a Model,
    pub(crate) tokenizer: &'a Tokenizer,
}

impl Runner<'_> {
    /// The question in the prompt that is compressed.
    pub(crate) fn before(&self, entry: &Entry, prompts: &[NeedlePrompt]) -> Result<Vec<Answer>> {
        let mut cache = self.model.cache(entry.policy.clone())?;
        let whole: Vec<Vec<u32>> =
            prompts.iter().map(|prompt| [&prompt.context[..], &prompt.question].concat()).collect();
        self.answer(entry, Question::Before, prompts, &whole, &mut cache)
    }

    /// The context first, then the question as a second prompt.
    pub(crate) fn after(&self, entry: &Entry, prompts: &[NeedlePrompt]) -> Result<Vec<Answer>> {
        let mut cache = self.model.cache(entry.policy.clone())?;
        let contexts: Vec<&[u32]> = prompts.iter().map(|prompt| &prompt.context[..]).collect();
        prefill(self.model, &contexts, &mut cache, None)?;
        reconstruct(self.model, &contexts, &mut cache, &Instruction::new(self.tokenizer)?)?;
        let questions: Vec<&[u32]> = prompts.iter().map(|prompt| &prompt.question[..]).collect();
        self.answer(entry, Question::After, prompts, &questions, &mut cache)
    }

    fn answer(
        &self,
        entry: &Entry,
        question: Question,
        prompts: &[NeedlePrompt],
        inputs: &[impl AsRef<[u32]>],
        cache: &mut KvCache,
    ) -> Result<Vec<Answer>> {
        let longest = prompts.iter().map(|prompt| prompt.answer.len()).max().unwrap_or(0);
        let options = GenerateOptions {
            max_new_tokens: longest,
            instruction: Instruction::new(self.tokenizer)?,
            ..GenerateOptions::default()
        };
        let (generations, _) = generate_batch(self.model, inputs, cache, &options, |_, _| {})?;
        let rows = prompts.len();
        let CacheBytes { bytes, spare, full } = CacheBytes::of(cache);
        let held = CacheBytes {
            bytes: bytes / rows,
            spare: spare.map(|spare| spare / rows),
            full: full / rows,
        };
        prompts
            .iter()
            .zip(generations)
            .map(|(prompt, generation)| {
                let tokens = &generation.tokens[..prompt.answer.len().min(generation.tokens.len())];
                let text = self.tokenizer.decode(tokens)?;
                Ok(Answer::new(entry, question, prompt, tokens, text, held))
            })
            .collect()
    }
}
