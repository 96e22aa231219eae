use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use burn::tensor::{Int, Tensor, TensorData};

use briquette::{
    KvCache, Prompt,
    policy::{PositionMode, PrefillCompression},
};

use crate::{
    Error, GenerateOptions, Model, Result,
    generate::{choose::Chooser, reconstruct::reconstruct, steps::Steps},
};

/// The continuation of one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The tokens, without the stop token.
    pub tokens: Vec<u32>,
    /// Whether a stop token or the receiver of the tokens ended it, rather than `max_new_tokens`.
    pub stopped: bool,
    /// The last token, where the cache has not seen it: a text that continues this one begins with
    /// it. `None` behind a stop token, and in a batch for a row that ended before others: its
    /// cache has seen tokens that are not its own.
    pub unseen: Option<u32>,
}

/// Durations of prefill and decoding, with the device synchronised before each reading of the
/// clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timing {
    /// Tokens of the prompts, padding not counted.
    pub prompt_tokens: usize,
    /// Time from the first chunk of the prompts to the logits of their last tokens.
    pub prefill: Duration,
    /// Decoded tokens: every one but the first of each row, which comes out of the prefill.
    pub decoded_tokens: usize,
    /// Time from the end of the prefill to the end.
    pub decode: Duration,
    /// Decode steps of all rows, each a call of the model.
    pub steps: usize,
    /// Of these the steps that were replayed from a recording.
    pub replayed: usize,
    /// The reason why steps were launched that might have been replayed; `None` if there is none.
    pub launched_because: Option<String>,
}

impl Timing {
    /// Tokens of the prompts per second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens, self.prefill)
    }

    /// Decoded tokens per second, 0 if there are none.
    pub fn decode_rate(&self) -> f64 {
        rate(self.decoded_tokens, self.decode)
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if tokens == 0 { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

/// Continues one prompt. `on_token` receives each token as soon as it is chosen, without the stop
/// token.
///
/// The cache may hold earlier text: the prompt then follows it.
///
/// # Errors
/// As [`generate_batch`].
pub fn generate(
    model: &Model,
    prompt: &[u32],
    cache: &mut KvCache,
    options: &GenerateOptions,
    mut on_token: impl FnMut(u32),
) -> Result<(Generation, Timing)> {
    let (mut rows, timing) =
        generate_batch(model, &[prompt], cache, options, |_, token| on_token(token))?;
    Ok((rows.remove(0), timing))
}

/// As [`generate`], until `on_token` breaks. The token it breaks at is the last of the generation.
///
/// # Errors
/// As [`generate_batch`].
pub fn generate_until(
    model: &Model,
    prompt: &[u32],
    cache: &mut KvCache,
    options: &GenerateOptions,
    mut on_token: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<(Generation, Timing)> {
    let (mut rows, timing) =
        generate_batch_until(model, &[prompt], cache, options, |_, token| on_token(token))?;
    Ok((rows.remove(0), timing))
}

/// Continues several prompts at once. Shorter ones are padded on the left; a row that has met a
/// stop token rests until all have. `on_token` receives the row and the token.
///
/// # Errors
/// [`Error::InvalidOption`], and as [`prefill`]. After an error the cache may hold a part of the
/// prompts: reset it.
pub fn generate_batch<P: AsRef<[u32]>>(
    model: &Model,
    prompts: &[P],
    cache: &mut KvCache,
    options: &GenerateOptions,
    mut on_token: impl FnMut(usize, u32),
) -> Result<(Vec<Generation>, Timing)> {
    generate_batch_until(model, prompts, cache, options, |row, token| {
        on_token(row, token);
        ControlFlow::Continue(())
    })
}

/// As [`generate_batch`], each row until `on_token` breaks. The token it breaks at is the last of
/// the row, which rests then as behind a stop token.
///
/// # Errors
/// As [`generate_batch`].
pub fn generate_batch_until<P: AsRef<[u32]>>(
    model: &Model,
    prompts: &[P],
    cache: &mut KvCache,
    options: &GenerateOptions,
    mut on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
) -> Result<(Vec<Generation>, Timing)> {
    let mut chooser = Chooser::new(options, prompts, model.config().vocab_size)?;
    let device = cache.device().clone();

    let start = Instant::now();
    let mut logits = prefill(model, prompts, cache, options.chunk)?;
    reconstruct(model, prompts, cache, &options.instruction)?;
    device.sync()?;
    let prefilled = Instant::now();

    let mut rows =
        vec![Generation { tokens: Vec::new(), stopped: false, unseen: None }; prompts.len()];
    let mut decoded_tokens = 0;
    let mut calls = 0;
    let mut steps = Steps::new(model, cache, rows.len(), options);
    for step in 0..options.max_new_tokens {
        let chosen = chooser.choose(logits, |row| rows[row].stopped)?;
        // A row at rest is fed a token too, whose output is not looked at.
        let mut next = vec![0; rows.len()];
        for (row, token) in chosen.into_iter().enumerate() {
            rows[row].unseen = None;
            if rows[row].stopped {
                continue;
            }
            decoded_tokens += usize::from(step > 0);
            if options.stop.contains(&token) {
                rows[row].stopped = true;
            } else {
                rows[row].tokens.push(token);
                rows[row].unseen = Some(token);
                next[row] = token;
                rows[row].stopped = on_token(row, token).is_break();
            }
        }
        if step + 1 == options.max_new_tokens || rows.iter().all(|row| row.stopped) {
            break;
        }
        let shape = [rows.len(), 1];
        logits = steps.next(columns(next, shape, model))?;
        calls += 1;
    }
    device.sync()?;
    let timing = Timing {
        prompt_tokens: prompts.iter().map(|prompt| prompt.as_ref().len()).sum(),
        prefill: prefilled - start,
        decoded_tokens,
        decode: prefilled.elapsed(),
        steps: calls,
        replayed: steps.replayed(),
        launched_because: steps.launched_because(),
    };
    Ok((rows, timing))
}

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
    let rows = prompts.len();
    let lengths = || prompts.iter().map(|prompt| prompt.as_ref().len());
    if let Some(row) = lengths().position(|length| length == 0) {
        return Err(Error::EmptyPrompt { row, rows });
    }
    let Some(width) = lengths().max() else {
        return Err(Error::EmptyPrompt { row: 0, rows });
    };
    let context = model.context(cache.policy()).unwrap_or(usize::MAX);
    let chunk = fitting(model, cache, width, chunk)?;
    let seen = cache.tokens_seen();
    for (row, tokens) in lengths().enumerate() {
        let tokens = tokens.saturating_add(seen.get(row).copied().unwrap_or(0));
        if tokens > context {
            return Err(Error::PromptTooLong { tokens, context });
        }
    }
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
    model.check_tokens(prompts.iter().flat_map(|p| p.as_ref().iter().map(|&id| i64::from(id))))?;

    let padding: Vec<usize> = lengths().map(|length| width - length).collect();
    let pad = model.config().pad_token_id.filter(|&id| (id as usize) < model.config().vocab_size);
    let mut ids = Vec::with_capacity(rows * width);
    for (prompt, &padding) in prompts.iter().zip(&padding) {
        ids.extend(std::iter::repeat_n(pad.unwrap_or(0), padding));
        ids.extend_from_slice(prompt.as_ref());
    }
    let tokens = columns(ids, [rows, width], model);

    cache.begin_prompt(Prompt::new(width).left_padding(padding))?;
    let mut start = 0;
    loop {
        let length = chunk.min(width - start);
        let hidden = model.decode(tokens.clone().narrow(1, start, length), cache)?;
        start += length;
        if start == width {
            return model.last_logits(hidden);
        }
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
        _ if most == 0 => Err(Error::PromptTooLong { tokens, context }),
        Some(chunk) if chunk > most => Err(Error::ChunkTooLong { chunk, most, context }),
        chunk => Ok(chunk.or(Some(most))),
    }
}

/// Token ids, row by row, as a tensor of `shape` on the device of the model.
pub(crate) fn columns(ids: Vec<u32>, shape: [usize; 2], model: &Model) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(ids, shape), &model.device())
}
