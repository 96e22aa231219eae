//! Perplexity as a task: how well a model continues a text.

use std::path::{Path, PathBuf};

use briquette::{KvCache, Policy};
use briquette_models::{Instruction, Model, Tokenizer, prefill, reconstruct};
use burn::tensor::{DType, Int, Tensor, TensorData, activation::log_softmax};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result, files,
    record::{CacheBytes, Outcome},
    tasks::text::{Text, Window, check_windows},
    tensors::{finite_numbers, row},
};

/// Protocol by which a model reads a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// A prompt is compressed, and the tokens behind it are fed one by one, each of them right. The
    /// first is not scored: it is predicted before anything was compressed.
    #[default]
    Window,
    /// Begins with an empty cache and goes far past the budget: every token is predicted from the
    /// cache as it then is, and fed (StreamingLLM, Section 4.1, on PG-19; EMS, appendix C).
    Stream,
}

/// Perplexity in a run file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TextTask {
    label: Option<String>,
    /// A file of text; the built-in prose by default.
    text: Option<PathBuf>,
    /// Protocol by which the model reads it.
    #[serde(default)]
    pub protocol: Protocol,
    /// Tokens of the prompt that is compressed, of [`Protocol::Window`] only.
    #[serde(alias = "length")]
    prompt: Option<usize>,
    /// Tokens predicted.
    tokens: usize,
    /// Windows of the text.
    #[serde(default = "one", alias = "samples")]
    windows: usize,
    /// Tokens from the start of one to the start of the next; by default they are spread over the
    /// text.
    stride: Option<usize>,
    /// Tokens fed at once, of [`Protocol::Stream`] only: 1 by default. A cache compresses behind
    /// each chunk as behind a prompt, so methods that compress prompts only need more than 1.
    chunk: Option<usize>,
}

fn one() -> usize {
    1
}

impl TextTask {
    pub(super) fn resolve(&mut self, base: &Path) {
        if let Some(text) = &mut self.text {
            *text = files::joined(base, text);
        }
    }

    /// Label in results.
    pub fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| match self.protocol {
            Protocol::Window => "perplexity".into(),
            Protocol::Stream => "perplexity-stream".into(),
        })
    }

    /// Tokens given at once, before any is scored.
    pub(super) fn prompt(&self) -> usize {
        match self.protocol {
            Protocol::Window => self.prompt.unwrap_or(0),
            Protocol::Stream => 1,
        }
    }

    fn chunk(&self) -> usize {
        self.chunk.unwrap_or(1)
    }

    /// The windows, each with the token that opens a text, what is given at once, and what is
    /// predicted.
    pub(super) fn windows(&self, tokenizer: &Tokenizer, context: usize) -> Result<Vec<Window>> {
        let fail = |name, reason: &str| Err(Error::Setting { name, reason: reason.into() });
        match (self.protocol, self.prompt, self.chunk) {
            (Protocol::Window, None, _) => {
                return fail("prompt", "the protocol `window` needs the tokens of the prompt");
            }
            (Protocol::Window, _, Some(_)) => {
                return fail("chunk", "only the protocol `stream` feeds tokens in chunks");
            }
            (Protocol::Stream, Some(_), _) => {
                return fail("prompt", "the protocol `stream` begins with an empty cache");
            }
            _ => {}
        }
        let counts = [
            ("prompt", self.prompt()),
            ("tokens", self.tokens),
            ("windows", self.windows),
            ("chunk", self.chunk()),
        ];
        // The first token behind a prompt is fed but not scored: it is predicted before anything
        // was compressed.
        let unscored = usize::from(self.protocol == Protocol::Window);
        let length = self.prompt().saturating_add(self.tokens).saturating_add(unscored);
        check_windows(&counts, length, context)?;
        Text::read(self.text.as_deref(), tokenizer)?.windows(length, self.windows, self.stride)
    }

    /// Settings that the result depends on beside the tokens of a window.
    pub(super) fn settings(&self) -> String {
        format!("{:?} {} {}", self.protocol, self.prompt(), self.chunk())
    }

    pub(super) fn measure(
        &self,
        model: &Model,
        policy: &Policy,
        window: &[u32],
    ) -> Result<Outcome> {
        let prompt = self.prompt();
        let mut cache = model.cache(policy.clone())?;
        let nats = match self.protocol {
            Protocol::Window => losses_behind(model, &mut cache, window, prompt)?,
            Protocol::Stream => stream(model, &mut cache, window, self.chunk())?,
        };
        Ok(Outcome::Text { prompt, nats, cache: CacheBytes::of(&cache) })
    }
}

fn log_probabilities(model: &Model, logits: Tensor<2>, right: &[u32]) -> Tensor<2> {
    let right = TensorData::new(right.to_vec(), [right.len(), 1]);
    let right = Tensor::<2, Int>::from_data(right, &model.device());
    log_softmax(logits.cast(DType::F32), 1).gather(1, right)
}

/// The losses of the tokens behind a prompt but for the first, in nats: −ln of the probability that
/// each was given.
fn losses_behind(
    model: &Model,
    cache: &mut KvCache,
    window: &[u32],
    prompt: usize,
) -> Result<Vec<f32>> {
    let (prompt, behind) = window.split_at(prompt.min(window.len()));
    prefill(model, &[prompt], cache, None)?;
    reconstruct(model, &[prompt], cache, &Instruction::default())?;
    let mut losses = Vec::with_capacity(behind.len());
    for pair in behind.windows(2) {
        let logits = model.forward_last(row(&pair[..1], model), cache)?;
        losses.push(log_probabilities(model, logits, &pair[1..]));
    }
    match losses.is_empty() {
        true => Ok(Vec::new()),
        false => finite_numbers(Tensor::cat(losses, 0).neg()),
    }
}

/// The losses of all tokens but the first, in nats: each is predicted, then fed, `chunk` at a time.
fn stream(model: &Model, cache: &mut KvCache, tokens: &[u32], chunk: usize) -> Result<Vec<f32>> {
    let mut losses = Vec::new();
    let Some((first, rest)) = tokens.split_first() else { return Ok(Vec::new()) };
    let Some(second) = rest.first() else { return Ok(Vec::new()) };
    // Behind the first token nothing is compressed that a chunk could miss: it is a prompt of its
    // own.
    let logits = prefill(model, &[[*first]], cache, None)?;
    losses.push(log_probabilities(model, logits, &[*second]));
    for at in (0..rest.len().saturating_sub(1)).step_by(chunk) {
        let end = (at + chunk).min(rest.len() - 1);
        let logits = model.forward(row(&rest[at..end], model), cache)?;
        let [_, columns, vocabulary] = logits.dims();
        let logits = logits.reshape([columns, vocabulary]);
        losses.push(log_probabilities(model, logits, &rest[at + 1..end + 1]));
    }
    finite_numbers(Tensor::cat(losses, 0).neg())
}

#[cfg(test)]
mod tests {
    use briquette::Budget;

    use super::*;
    use crate::testing::{model, tokenizer};

    fn task(text: &str) -> TextTask {
        toml::from_str(text).unwrap()
    }

    /// −ln of the probability of every token but the first, from one pass over all of them.
    fn at_once(model: &Model, tokens: &[u32]) -> Vec<f32> {
        let mut cache = model.cache(Policy::full()).unwrap();
        let logits = model.forward(row(tokens, model), &mut cache).unwrap();
        let logits = logits.try_into_vec_as::<f32>().unwrap();
        let rows = logits.chunks(model.config().vocab_size).zip(&tokens[1..]);
        rows.map(|(row, right)| {
            let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
            (sum.ln() - f64::from(row[*right as usize])) as f32
        })
        .collect()
    }

    #[test]
    fn a_stream_on_the_full_cache_is_one_pass() {
        let (model, tokenizer) = model();
        let windows = |text| task(text).windows(&tokenizer, 4096).unwrap();
        let window = &windows("protocol = \"stream\"\ntokens = 40")[0];
        assert_eq!(window.tokens.len(), 41);
        let expected = at_once(&model, &window.tokens);
        for chunk in [1, 7, 64] {
            let stream = task(&format!("protocol = \"stream\"\ntokens = 40\nchunk = {chunk}"));
            let outcome = stream.measure(&model, &Policy::full(), &window.tokens).unwrap();
            let Outcome::Text { prompt, nats, cache } = outcome else { panic!("{outcome:?}") };
            assert_eq!((prompt, nats.len(), cache.full), (1, 40, 40 * 4096));
            for (nats, expected) in nats.iter().zip(&expected) {
                assert!((nats - expected).abs() < 1e-3, "{chunk}: {nats} {expected}");
            }
        }
    }

    #[test]
    fn a_stream_holds_its_budget() {
        let (model, tokenizer) = model();
        let stream = task("protocol = \"stream\"\ntokens = 96\nchunk = 8");
        let window = &stream.windows(&tokenizer, 4096).unwrap()[0];
        let policy = Policy::streaming_llm(Budget::Tokens(32));
        let outcome = stream.measure(&model, &policy, &window.tokens).unwrap();
        let Outcome::Text { nats, cache, .. } = outcome else { panic!("{outcome:?}") };
        let full = at_once(&model, &window.tokens);
        // Nothing is dropped before the budget is full, and what is dropped then is missed.
        let apart = |range: std::ops::Range<usize>| {
            range.map(|i| f64::from((nats[i] - full[i]).abs())).fold(0.0, f64::max)
        };
        assert!(apart(0..31) < 1e-3, "{}", apart(0..31));
        assert!(apart(48..96) > 1e-2, "{}", apart(48..96));
        assert!(cache.bytes < cache.full * 2 / 3, "{cache:?}");
    }

    #[test]
    fn what_does_not_fit_the_protocol_is_refused() {
        let tokenizer = tokenizer();
        for (text, reason) in [
            ("tokens = 8", "prompt"),
            ("tokens = 8\nprompt = 8\nchunk = 2", "chunk"),
            ("tokens = 8\nprompt = 8\nprotocol = \"stream\"", "empty cache"),
            ("tokens = 0\nprompt = 8", "tokens"),
            ("tokens = 8\nprotocol = \"stream\"\nchunk = 0", "chunk"),
            ("tokens = 120\nprompt = 8", "129 tokens"),
            ("tokens = 128\nprotocol = \"stream\"", "129 tokens"),
        ] {
            let error = task(text).windows(&tokenizer, 128).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
