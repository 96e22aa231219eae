//! A sample answered on a cache.

use std::{ops::ControlFlow, time::Instant};

use briquette::KvCache;
use briquette_models::{
    GenerateOptions, Instruction, Model, StreamDecoder, Timing, Tokenizer, continue_batch_until,
    generate_batch_until, prefill, reconstruct,
};
use burn::tensor::Tensor;

use crate::{
    Result, prefix,
    record::{Answer, CacheBytes, Outcome},
    tasks::{Question, Sample, Turn},
};

/// A model that answers samples, with its tokenizer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session<'a> {
    pub(super) model: &'a Model,
    pub(super) tokenizer: &'a Tokenizer,
    /// Tokens of a prompt given to the model at a time.
    pub(super) chunk: Option<usize>,
}

/// A cache that samples are asked on: empty, with what the context follows, or behind the first
/// prompts.
pub(super) struct Start {
    pub(super) cache: KvCache,
    pub(super) prefilled: Option<Prefilled>,
}

impl Start {
    /// No policy has shared its prefill.
    pub(super) fn at(cache: KvCache) -> Self {
        Self { cache, prefilled: None }
    }
}

/// A prefill of the first prompts of samples that policies shared.
pub(super) struct Prefilled {
    /// After the last token of each prompt, `[samples, vocab_size]`.
    pub(super) logits: Tensor<2>,
    /// Seconds that the policy's own would have taken.
    pub(super) seconds: f64,
}

/// The tokens that are given to the cache first: with the question behind them, if that is asked
/// before compression.
pub(super) fn first_prompts(samples: &[&Sample], ask: Question) -> Vec<Vec<u32>> {
    let is_alone = is_context_alone(samples.iter().map(|sample| &sample.context[..]), ask);
    let question = |sample: &Sample| match sample.turns.first() {
        Some(turn) if !is_alone => turn.question.clone(),
        _ => Vec::new(),
    };
    samples.iter().map(|sample| [&sample.context[..], &question(sample)].concat()).collect()
}

/// Whether the contexts of samples are compressed before the question comes.
pub(super) fn is_context_alone<'a>(
    mut contexts: impl Iterator<Item = &'a [u32]>,
    ask: Question,
) -> bool {
    ask == Question::After && contexts.all(|context| !context.is_empty())
}

struct Generated {
    tokens: Vec<u32>,
    text: String,
    /// The last token, where the cache has not seen it.
    unseen: Option<u32>,
    /// Decoded tokens: every one but the first, a stop token among them.
    decoded: usize,
}

impl Session<'_> {
    /// The answers to all questions of samples, greedily decoded: of one sample, or of several with
    /// one question each, which are rows of a batch. Outcomes are in the order of the samples.
    ///
    /// Asked before, the context and the first question are one prompt; asked after, the context is
    /// compressed alone. Later questions follow in the same cache, as prompts of their own.
    ///
    /// Of a batch each sample has an equal share of the seconds and of the bytes held.
    pub(super) fn ask(
        &self,
        start: Start,
        samples: &[&Sample],
        ask: Question,
    ) -> Result<Vec<Outcome>> {
        let rows = samples.len();
        let mut before: Vec<Vec<u32>> =
            samples.iter().map(|sample| sample.context.clone()).collect();
        let instruction = Instruction::new(self.tokenizer)?;
        let Start { mut cache, prefilled } = start;
        let mut prefill_seconds = prefilled.as_ref().map_or(0.0, |prefilled| prefilled.seconds);
        let mut logits = prefilled.map(|prefilled| prefilled.logits);
        if logits.is_none() && !cache.tokens_seen().is_empty() {
            let following = |context| prefix::following(context, self.tokenizer);
            before = before.into_iter().map(following).collect::<Result<_>>()?;
        }
        if is_context_alone(before.iter().map(Vec::as_slice), ask) {
            let start = Instant::now();
            if logits.take().is_none() {
                prefill(self.model, &before, &mut cache, self.chunk)?;
            }
            reconstruct(self.model, &before, &mut cache, &instruction)?;
            self.model.device().sync().map_err(briquette_models::Error::from)?;
            prefill_seconds += start.elapsed().as_secs_f64();
            before.iter_mut().for_each(Vec::clear);
        }
        let (mut decode_seconds, mut steps) = (0.0, 0);
        let mut decoded = vec![0; rows];
        let mut answers = vec![Vec::new(); rows];
        let most = samples.iter().map(|sample| sample.turns.len()).max().unwrap_or(0);
        for number in 0..most {
            let turns: Vec<&Turn> =
                samples.iter().filter_map(|sample| sample.turns.get(number)).collect();
            for (before, turn) in before.iter_mut().zip(&turns) {
                before.extend(&turn.question);
            }
            let prompts = (&before[..], logits.take());
            let (generated, timing) = self.generate(prompts, &turns, &mut cache, &instruction)?;
            if number == 0 {
                prefill_seconds += timing.prefill.as_secs_f64();
            }
            decode_seconds += timing.decode.as_secs_f64();
            steps += timing.steps;
            for (row, (turn, generated)) in turns.into_iter().zip(generated).enumerate() {
                decoded[row] += generated.decoded;
                before[row] = generated.unseen.into_iter().collect();
                answers[row].push(answer(turn, generated)?);
            }
        }
        let bytes = bytes_of_rows(&cache, &decoded, steps);
        let outcomes = samples.iter().zip(answers).zip(bytes).zip(decoded);
        Ok(outcomes
            .map(|(((sample, answers), cache), decoded_tokens)| Outcome::Answers {
                axes: sample.axes.clone(),
                answers,
                cache,
                prefill_seconds: Some(prefill_seconds / rows as f64),
                decode_seconds: decode_seconds / rows as f64,
                decoded_tokens,
            })
            .collect())
    }

    /// Generates the answers to turns, each the end of its prompt. Logits come with prompts that
    /// the cache has taken in.
    fn generate(
        &self,
        (prompts, logits): (&[Vec<u32>], Option<Tensor<2>>),
        turns: &[&Turn],
        cache: &mut KvCache,
        instruction: &Instruction,
    ) -> Result<(Vec<Generated>, Timing)> {
        let options = GenerateOptions {
            max_new_tokens: turns.iter().map(|turn| turn.max_new_tokens).max().unwrap_or(0),
            chunk: self.chunk,
            stop: self.model.config().eos_token_ids.clone(),
            instruction: instruction.clone(),
            // Later questions follow in the cache, whose bytes are those of all rows.
            keep_rows: true,
            ..GenerateOptions::default()
        };
        let listener = |turn| Listener::new(turn, self.tokenizer.stream());
        let mut listeners: Vec<Listener<'_>> = turns.iter().copied().map(listener).collect();
        let hear = |row: usize, token| listeners[row].hear(token);
        let (rows, timing) = match logits {
            None => generate_batch_until(self.model, prompts, cache, &options, hear)?,
            Some(logits) => {
                continue_batch_until(self.model, prompts, logits, cache, &options, hear)?
            }
        };
        let generated = rows.into_iter().zip(listeners).map(|(row, listener)| {
            if let Some(error) = listener.failed {
                return Err(error.into());
            }
            let mut text = self.tokenizer.decode(&row.tokens)?;
            if let Some(end) = stop_at(&text, &listener.turn.stop) {
                text.truncate(end);
            }
            let at_stop_token = row.stopped && !listener.is_cut;
            let decoded = (row.tokens.len() + usize::from(at_stop_token)).saturating_sub(1);
            Ok(Generated { tokens: row.tokens, text, unseen: row.unseen, decoded })
        });
        Ok((generated.collect::<Result<_>>()?, timing))
    }
}

struct Listener<'a> {
    turn: &'a Turn,
    stream: StreamDecoder<'a>,
    text: String,
    tokens: usize,
    /// Whether the answer ended at a stop text, or with its last token.
    is_cut: bool,
    failed: Option<briquette_models::Error>,
}

impl<'a> Listener<'a> {
    fn new(turn: &'a Turn, stream: StreamDecoder<'a>) -> Self {
        Self { turn, stream, text: String::new(), tokens: 0, is_cut: false, failed: None }
    }

    fn hear(&mut self, token: u32) -> ControlFlow<()> {
        match self.stream.push(token) {
            Ok(piece) => self.text += &piece,
            Err(error) => self.failed = Some(error),
        }
        self.tokens += 1;
        self.is_cut = stop_at(&self.text, &self.turn.stop).is_some()
            || self.tokens >= self.turn.max_new_tokens
            || self.failed.is_some();
        if self.is_cut { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Bytes of each row of a cache that was given `steps` tokens a row behind the prompts, of which so
/// many are `decoded` ones of the row.
fn bytes_of_rows(cache: &KvCache, decoded: &[usize], steps: usize) -> Vec<CacheBytes> {
    let CacheBytes { bytes, spare, full } = CacheBytes::of(cache);
    let (rows, seen) = (decoded.len().max(1), cache.tokens_seen());
    let of_token = full / seen.iter().sum::<usize>().max(1);
    let row = |(seen, decoded): (usize, &usize)| CacheBytes {
        bytes: bytes / rows,
        spare: spare.map(|spare| spare / rows),
        full: of_token * (seen + decoded).saturating_sub(steps),
    };
    seen.into_iter().zip(decoded).map(row).collect()
}

/// Start of the first of the stop texts.
fn stop_at(text: &str, stop: &[String]) -> Option<usize> {
    stop.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| text.find(stop.as_str())).min()
}

fn answer(turn: &Turn, generated: Generated) -> Result<Answer> {
    let right = |tokens: &Vec<u32>| {
        let right = tokens.iter().zip(&generated.tokens).filter(|(a, b)| a == b).count();
        right as f64 / tokens.len().max(1) as f64
    };
    let right_tokens = turn.tokens.as_ref().map(right);
    Ok(Answer { right_tokens, ..Answer::new(generated.text, turn)? })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use briquette::{Budget, Policy};

    use super::*;
    use crate::{metrics::Metric, testing::model};

    fn empty(model: &Model, policy: Policy) -> Start {
        Start::at(model.cache(policy).unwrap())
    }

    fn turn(tokenizer: &Tokenizer, question: &str, answer: &str, stop: &[&str]) -> Turn {
        let [question, tokens] =
            [question, answer].map(|text| tokenizer.encode(text, false).unwrap());
        Turn {
            tokens: Some(tokens),
            stop: stop.iter().map(|stop| (*stop).to_owned()).collect(),
            ..Turn::new(question, vec![answer.into()], Metric::ExactMatch, 12)
        }
    }

    /// Two numbers hidden under words, in the form the model was trained on.
    fn sample(tokenizer: &Tokenizer, stop: &[&str]) -> Sample {
        let context = "\nSome special magic numbers are hidden within the following text. Make sure to memorize \
                       them. I will quiz you about the numbers afterwards.\nThe rain had stopped before noon.\n\
                       One of the special magic numbers is countess:8174205. The road was wet and nobody came.";
        let question = "\nWhat is the special magic number for countess mentioned in the provided text? The special \
                        magic number is countess:";
        Sample {
            id: "0".into(),
            axes: BTreeMap::from([("length".into(), 128)]),
            context: tokenizer.encode(context, true).unwrap(),
            turns: vec![turn(tokenizer, question, "8174205", stop); 2],
        }
    }

    fn answers(outcomes: Vec<Outcome>) -> (Vec<Answer>, CacheBytes, usize) {
        match outcomes.into_iter().next().unwrap() {
            Outcome::Answers { answers, cache, decoded_tokens, .. } => {
                (answers, cache, decoded_tokens)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn turns_follow_each_other_in_one_cache() {
        let (model, tokenizer) = model();
        let session = Session { model: &model, tokenizer: &tokenizer, chunk: None };
        let sample = sample(&tokenizer, &[]);
        for ask in [Question::Before, Question::After] {
            let outcome = session.ask(empty(&model, Policy::full()), &[&sample], ask).unwrap();
            let (answers, cache, decoded) = answers(outcome);
            // It ends each answer with the end token.
            let said: Vec<&str> = answers.iter().map(|answer| answer.said.as_str()).collect();
            assert_eq!(said, ["8174205", "8174205"]);
            assert!(answers.iter().all(|answer| answer.score == 1.0));
            assert!(answers.iter().all(|answer| answer.right_tokens == Some(1.0)));
            // Context, two questions, and the seven digits of each answer, of 4 KiB each.
            let seen = sample.context.len() + 2 * sample.turns[0].question.len() + 2 * 7;
            assert_eq!((cache.full, decoded), (seen * 4096, 14));
            // In parts it is the same.
            let parts = Session { chunk: Some(40), ..session };
            let parts = parts.ask(empty(&model, Policy::full()), &[&sample], ask).unwrap();
            assert_eq!(self::answers(parts).0, answers);
        }
    }

    #[test]
    fn a_stop_text_ends_an_answer() {
        let (model, tokenizer) = model();
        let session = Session { model: &model, tokenizer: &tokenizer, chunk: None };
        let sample = sample(&tokenizer, &["42", "0"]);
        let outcome =
            session.ask(empty(&model, Policy::full()), &[&sample], Question::After).unwrap();
        let (answers, cache, decoded) = answers(outcome);
        let first = &answers[0];
        assert_eq!(first.said, "817");
        assert_eq!(first.score, 0.0);
        // Generated up to the `2` of `42`.
        assert_eq!(first.right_tokens, Some(5.0 / 7.0));
        assert!(decoded < 14);
        // Of the first answer the cache has seen what came before that `2`.
        let said = cache.full / 4096 - sample.context.len() - 2 * sample.turns[0].question.len();
        assert!((4..=4 + 12).contains(&said), "{said}");
    }

    #[test]
    fn asked_after_the_context_is_compressed_alone() {
        let (model, tokenizer) = model();
        let session = Session { model: &model, tokenizer: &tokenizer, chunk: None };
        let mut sample = sample(&tokenizer, &[]);
        sample.turns.truncate(1);
        let policy = Policy::local_window(Budget::Tokens(16));
        let outcome = session.ask(empty(&model, policy), &[&sample], Question::After).unwrap();
        let (lost, cache, _) = answers(outcome);
        // The needle is not among the last 16 tokens.
        assert_eq!(lost[0].score, 0.0);
        assert!(cache.bytes < cache.full / 2, "{cache:?}");
    }
}
