//! Prompts given to a model.

use std::time::Duration;

use burn::tensor::{Int, Tensor, TensorData};
use web_time::Instant;

use briquette::{
    KvCache, PrefillCompression, Prompt, SharedPrefill, SharedTimes, policy::PositionMode,
};

use crate::{Error, Model, Result};

/// Gives the prompts to the model, `chunk` columns at a time or whole, and returns the logits after
/// the last token of each. Shorter prompts are padded on the left.
///
/// # Shapes
/// - returns `[prompts, vocab_size]`
///
/// # Errors
/// [`Error::CacheShape`], [`Error::EmptyPrompt`], [`Error::PromptTooLong`],
/// [`Error::PromptNotInParts`], [`Error::ChunkTooLong`], [`Error::TokenOutOfRange`],
/// [`Error::InvalidOption`] for a chunk of 0, and [`Error::Cache`] for what the cache refuses.
pub fn prefill<P: AsRef<[u32]>>(
    model: &Model,
    prompts: &[P],
    cache: &mut KvCache,
    chunk: Option<usize>,
) -> Result<Tensor<2>> {
    model.check_cache(cache)?;
    let width = width(prompts)?;
    let chunk = fitting(model, cache, width, chunk)?;
    let context = model.context(cache.policy()).unwrap_or(usize::MAX);
    let padded = Padded::new(model, prompts, context, &cache.tokens_seen())?;
    let chunk = match chunk {
        Some(0) => {
            return Err(Error::InvalidOption {
                option: "chunk",
                found: "0".into(),
                must_be: "at least 1",
            });
        }
        Some(columns) => columns.min(width),
        None => width,
    };
    cache.begin_prompt(padded.prompt)?;
    let mut start = 0;
    loop {
        let length = chunk.min(width - start);
        let hidden = model.decode(padded.tokens.clone().narrow(1, start, length), cache)?;
        start += length;
        if start == width {
            return model.last_logits(hidden);
        }
    }
}

/// Gives the prompts whole to the model once for several empty caches, each of which compresses
/// them by its own policy, and returns the logits after the last token of each. Shorter prompts are
/// padded on the left. Each cache ends as after a [`prefill`] of its own. A policy that wants a
/// [second pass](crate::reconstruct) still waits for it.
///
/// # Shapes
/// - returns `[prompts, vocab_size]`
///
/// # Errors
/// As [`prefill`], and [`briquette::Error::SharedPrefill`]. The caches are then empty.
pub fn prefill_shared<P: AsRef<[u32]>>(
    model: &Model,
    prompts: &[P],
    caches: &mut [KvCache],
) -> Result<Tensor<2>> {
    let (tokens, mut shared) = begin_shared(model, prompts, caches)?;
    model.last_through(tokens, &mut shared).inspect_err(|_| shared.reset())
}

/// As [`prefill_shared`], with the time that each cache's own prefill would have taken: that of the
/// model, which is the same for all, of its own attention, scores and compression, and nothing of
/// the others'. The device is waited for around each cache in each layer.
///
/// # Shapes
/// - returns `[prompts, vocab_size]`
///
/// # Errors
/// As [`prefill_shared`].
pub fn prefill_shared_timed<P: AsRef<[u32]>>(
    model: &Model,
    prompts: &[P],
    caches: &mut [KvCache],
) -> Result<(Tensor<2>, Vec<Duration>)> {
    let start = Instant::now();
    let (tokens, shared) = begin_shared(model, prompts, caches)?;
    let mut shared = shared.timed();
    let logits = model.last_through(tokens, &mut shared).inspect_err(|_| shared.reset())?;
    model.device().sync()?;
    let took = start.elapsed();
    let SharedTimes { all, each } = shared.times().cloned().unwrap_or_default();
    let outside = took.saturating_sub(all);
    Ok((logits, each.into_iter().map(|each| outside + each).collect()))
}

/// The tokens of prompts, and the caches that take them in.
fn begin_shared<'a, P: AsRef<[u32]>>(
    model: &Model,
    prompts: &[P],
    caches: &'a mut [KvCache],
) -> Result<(Tensor<2, Int>, SharedPrefill<'a>)> {
    let mut context = model.config().max_position_embeddings;
    for cache in caches.iter() {
        model.check_cache(cache)?;
        context = context.min(model.context(cache.policy()).unwrap_or(usize::MAX));
    }
    let padded = Padded::new(model, prompts, context, &[])?;
    Ok((padded.tokens, SharedPrefill::new(caches, padded.prompt)?))
}

/// Tokens of the longest prompt.
fn width<P: AsRef<[u32]>>(prompts: &[P]) -> Result<usize> {
    let lengths = || prompts.iter().map(|prompt| prompt.as_ref().len());
    let empty = |row| Error::EmptyPrompt { row, rows: prompts.len() };
    if let Some(row) = lengths().position(|length| length == 0) {
        return Err(empty(row));
    }
    lengths().max().ok_or_else(|| empty(0))
}

/// Prompts as rows of one width, shorter ones padded on the left.
struct Padded {
    prompt: Prompt,
    /// `[prompts, width]`
    tokens: Tensor<2, Int>,
}

impl Padded {
    /// `seen` are the tokens before each prompt, none where it is empty.
    fn new<P: AsRef<[u32]>>(
        model: &Model,
        prompts: &[P],
        context: usize,
        seen: &[usize],
    ) -> Result<Self> {
        let rows = prompts.len();
        let lengths = || prompts.iter().map(|prompt| prompt.as_ref().len());
        let width = width(prompts)?;
        for (row, tokens) in lengths().enumerate() {
            let tokens = tokens.saturating_add(seen.get(row).copied().unwrap_or(0));
            if tokens > context {
                return Err(model.config().too_long(tokens, context));
            }
        }
        let ids = || prompts.iter().flat_map(|prompt| prompt.as_ref());
        model.check_tokens(ids().map(|&id| i64::from(id)))?;

        let vocabulary = model.config().vocab_size;
        let pad = model.config().pad_token_id.filter(|&id| (id as usize) < vocabulary);
        let padding: Vec<usize> = lengths().map(|length| width - length).collect();
        let mut ids = Vec::with_capacity(rows * width);
        for (prompt, &padding) in prompts.iter().zip(&padding) {
            ids.extend(std::iter::repeat_n(pad.unwrap_or(0), padding));
            ids.extend_from_slice(prompt.as_ref());
        }
        let tokens = columns(ids, [rows, width], model);
        Ok(Self { prompt: Prompt::new(width).left_padding(padding), tokens })
    }
}

/// Columns per call for a cache that counts positions inside itself: `chunk` where the prompt fits
/// behind the entries that the cache holds, else as many as fit beside what remains of the columns
/// before.
fn fitting(
    model: &Model,
    cache: &KvCache,
    width: usize,
    chunk: Option<usize>,
) -> Result<Option<usize>> {
    let (policy, context) = (cache.policy(), model.config().max_position_embeddings);
    if policy.positions() != PositionMode::InCache {
        return Ok(chunk);
    }
    let held: usize = (0..cache.shape().layers)
        .map(|layer| Ok(cache.tokens_kept(layer)?.into_iter().max().unwrap_or(0)))
        .collect::<Result<Vec<usize>>>()?
        .into_iter()
        .max()
        .unwrap_or(0);
    let tokens = held.saturating_add(width);
    if tokens <= context {
        return Ok(chunk);
    }
    let in_parts = policy.schedule().prefill == PrefillCompression::EveryChunk;
    let seen = cache.tokens_seen().iter().max().copied().unwrap_or(0).saturating_add(width);
    let most = context.saturating_sub(held.max(model.most_held(policy, seen)));
    match chunk {
        _ if !in_parts => Err(Error::PromptNotInParts { tokens, context }),
        _ if most == 0 => Err(model.config().too_long(tokens, context)),
        Some(chunk) if chunk > most => Err(Error::ChunkTooLong { chunk, most, context }),
        chunk => Ok(chunk.or(Some(most))),
    }
}

/// Token ids, row by row, as a tensor of `shape` on the device of the model.
pub(crate) fn columns(ids: Vec<u32>, shape: [usize; 2], model: &Model) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(ids, shape), &model.device())
}
