//! The side of a measurement that all policies share: a window on the full cache.

use briquette::{CacheConfig, KvCache, Policy, ops::Visibility};
use briquette_models::{Instruction, Model, reconstruct};
use briquette_ops::{MomentsInput, Scoring, WindowInput};
use burn::tensor::{DType, Int, Tensor};

use super::capture::{Capture, Passed, Projections};
use crate::{
    Error, Result,
    record::CacheBytes,
    tensors::{finite_numbers, numbers, row},
};

/// A window of text on the full cache: what policies are measured against.
///
/// It holds on the device the queries, keys and values of all N + T tokens and the attention
/// outputs of the T continued ones: (query_heads + 2 · kv_heads) · head_dim numbers a token and
/// layer, of the model's type; on the host the logits of the continued tokens and the attention
/// each token of the prompt receives from them.
#[derive(Debug)]
pub struct Reference<'a> {
    pub(super) model: &'a Model,
    /// The window: the prompt and the continued tokens.
    pub(super) tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    pub(super) layers: Vec<Layer>,
    /// The logits after each continued token, in f32.
    pub(super) logits: Vec<Vec<f32>>,
    /// Continued tokens after which distributions are compared.
    pub(super) compared: Vec<usize>,
    /// Attention that each token of the prompt receives, `[layer][kv_head][token]`.
    pub(super) attention: Vec<Vec<Vec<f32>>>,
}

#[derive(Debug)]
pub(super) struct Layer {
    pub(super) prompt: Projections,
    pub(super) continued: Vec<Projections>,
    /// The outputs of the continued tokens, `[1, query_heads, T, head_dim]`, f32.
    pub(super) outputs: Tensor<4>,
}

impl<'a> Reference<'a> {
    /// Runs the full cache over a window, of which the first `prompt` tokens are the prompt.
    ///
    /// # Errors
    /// [`Error::Setting`] for a window without a prompt or without a token behind it,
    /// [`Error::ContextTooShort`], failures of the model, and
    /// [`NotFinite`](briquette_models::Error::NotFinite) for logits that give no probabilities.
    pub fn new(model: &'a Model, window: &[u32], prompt: usize) -> Result<Self> {
        let length = window.len();
        if prompt == 0 {
            return Err(Error::Setting { name: "prompt", reason: "at least 1 is needed".into() });
        }
        if prompt >= length {
            let reason =
                format!("a window of {length} tokens has none behind its prompt of {prompt}");
            return Err(Error::Setting { name: "tokens", reason });
        }
        let context = model.config().max_position_embeddings;
        if length > context {
            return Err(Error::ContextTooShort { length, context });
        }

        let mut run = Capture::new(model.cache(Policy::full())?, true);
        model.forward_last_through(row(&window[..prompt], model), &mut run)?;
        let logits = continued_logits(model, &window[prompt..], &mut run)?;
        let layers: Vec<Layer> = run.layers.into_iter().map(layer).collect::<Result<_>>()?;
        let attention = layers
            .iter()
            .enumerate()
            .map(|(index, layer)| attention_received(model, index, layer, prompt))
            .collect::<Result<_>>()?;
        let compared = (0..length - prompt).collect();
        Ok(Self { model, tokens: window.to_vec(), prompt, layers, logits, compared, attention })
    }

    /// The same, with distributions compared after these continued tokens alone, counted from 0:
    /// those before an answer.
    #[must_use]
    pub fn comparing(self, compared: Vec<usize>) -> Self {
        Self { compared, ..self }
    }

    /// Tokens of the prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt]
    }

    /// The tokens behind it.
    pub fn continued(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }

    /// A cache of this policy that has read the prompt and compressed it, by a second pass where
    /// the policy wants one: a text is repeated as it is, without a word before it.
    pub(super) fn filled(&self, policy: Policy) -> Result<KvCache> {
        let mut cache = self.model.cache(policy)?;
        for (index, layer) in self.layers.iter().enumerate() {
            attend(&mut cache, index, &layer.prompt, self.model)?;
        }
        reconstruct(self.model, &[self.prompt()], &mut cache, &Instruction::default())?;
        Ok(cache)
    }

    /// The memory a policy holds when it has read the prompt and compressed it: the first step of
    /// [`measure`](Self::measure), alone.
    ///
    /// # Errors
    /// Errors of the policy or its cache.
    pub fn held(&self, policy: Policy) -> Result<CacheBytes> {
        Ok(CacheBytes::of(&self.filled(policy)?))
    }
}

/// Gives one layer of a cache what the full run gave to it.
pub(super) fn attend(
    cache: &mut KvCache,
    layer: usize,
    Projections { queries, keys, values }: &Projections,
    model: &Model,
) -> Result<Tensor<4>> {
    let [queries, keys, values] = [queries, keys, values].map(Clone::clone);
    Ok(cache.attend(layer, queries, keys, values, model.position_encoding(layer))?)
}

/// Feeds the tokens one at a time. Returns the logits after each.
pub(super) fn continued_logits(
    model: &Model,
    tokens: &[u32],
    run: &mut Capture,
) -> Result<Vec<Vec<f32>>> {
    let rows = tokens
        .iter()
        .map(|token| Ok(model.forward_last_through(row(&[*token], model), run)?.cast(DType::F32)))
        .collect::<Result<Vec<Tensor<2>>>>()?;
    let vocabulary = model.config().vocab_size;
    let logits = finite_numbers(Tensor::cat(rows, 0))?;
    Ok(logits.chunks(vocabulary).map(<[f32]>::to_vec).collect())
}

/// The first call of a layer brought the prompt.
fn layer(Passed { inputs, outputs }: Passed) -> Result<Layer> {
    let mut inputs = inputs.into_iter();
    let missing = || Error::Setting { name: "prompt", reason: "a layer saw none of it".into() };
    let prompt = inputs.next().ok_or_else(missing)?;
    let outputs = Tensor::cat(outputs.into_iter().skip(1).collect(), 2).cast(DType::F32);
    Ok(Layer { prompt, continued: inputs.collect(), outputs })
}

/// Attention that each token of the prompt receives from the continued ones: weights of the
/// softmax over all that a query sees, summed over the queries and over the query heads of each kv
/// head. `[kv_head][token]`
fn attention_received(
    model: &Model,
    index: usize,
    layer: &Layer,
    prompt: usize,
) -> Result<Vec<Vec<f32>>> {
    let shape = model.cache_shape();
    let device = model.device_of(index);
    let following = layer.continued.len();
    let all = |of: fn(&Projections) -> &Tensor<4>, first: Option<&Projections>| {
        let parts = first.into_iter().chain(&layer.continued);
        Tensor::cat(parts.map(|part| of(part).clone()).collect(), 2)
    };
    let positions = |from: usize, to: usize| -> Tensor<3, Int> {
        Tensor::arange(from as i64..to as i64, device).reshape([1, 1, to - from])
    };
    let encoding = model.position_encoding(index);
    let (of_queries, of_keys) =
        (positions(prompt, prompt + following), positions(0, prompt + following));
    let window = WindowInput {
        queries: encoding.encode(all(|part| &part.queries, None), of_queries),
        keys: encoding.encode(all(|part| &part.keys, Some(&layer.prompt)), of_keys),
        visibility: Visibility::Causal,
        scoring: Scoring::plain(1.0 / (shape.head_dim as f64).sqrt()),
    };
    let moments = CacheConfig::default().ops.window_moments(MomentsInput {
        window,
        own: vec![following],
        deviations: false,
        entropies: false,
    });
    let moments = moments.map_err(briquette::Error::from)?;
    let group = shape.query_heads / shape.kv_heads;
    let sums = moments
        .sums
        .reshape([shape.kv_heads, group, prompt + following])
        .narrow(2, 0, prompt)
        .sum_dim(1);
    Ok(numbers(sums)?.chunks(prompt).map(<[f32]>::to_vec).collect())
}
