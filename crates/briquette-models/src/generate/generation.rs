use std::ops::ControlFlow;

use briquette::KvCache;
use burn::tensor::Tensor;
use web_time::Instant;

use crate::{
    GenerateOptions, Generation, Model, Result, Timing,
    generate::{choose::Chooser, lookup, prefill::prefill, reconstruct::reconstruct, rows},
};

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

/// Continues several prompts at once. Shorter ones are padded on the left. A row that has met a
/// stop token leaves the cache, but where [all are kept](GenerateOptions::keep_rows): there it
/// rests until all have. `on_token` receives the row, by the order of the prompts, and the token.
///
/// # Errors
/// [`Error::InvalidOption`](crate::Error::InvalidOption), and as [`prefill`];
/// [`briquette::Error::DraftRefused`] with [`lookup`](GenerateOptions::lookup), before the first
/// token; what [`KvCache::select_rows`] returns. After an error the cache may hold a part of the
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
/// the row, which ends as at a stop token.
///
/// # Errors
/// As [`generate_batch`].
pub fn generate_batch_until<P: AsRef<[u32]>>(
    model: &Model,
    prompts: &[P],
    cache: &mut KvCache,
    options: &GenerateOptions,
    on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
) -> Result<(Vec<Generation>, Timing)> {
    let chooser = Chooser::new(options, prompts, model.config().vocab_size)?;
    let start = Instant::now();
    let logits = prefill(model, prompts, cache, options.chunk)?;
    reconstruct(model, prompts, cache, &options.instruction)?;
    let start = (start, logits);
    decode(model, prompts, start, cache, options, chooser, on_token)
}

/// As [`generate_batch_until`], of prompts that the cache has just taken in, of which these are the
/// `logits` after the last token of each, such as [`prefill_shared`](crate::prefill_shared)
/// returns. A second pass that the policy wants comes first, and is timed as the prefill.
///
/// # Errors
/// As [`generate_batch_until`].
pub fn continue_batch_until<P: AsRef<[u32]>>(
    model: &Model,
    prompts: &[P],
    logits: Tensor<2>,
    cache: &mut KvCache,
    options: &GenerateOptions,
    on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
) -> Result<(Vec<Generation>, Timing)> {
    let chooser = Chooser::new(options, prompts, model.config().vocab_size)?;
    let start = (Instant::now(), logits);
    reconstruct(model, prompts, cache, &options.instruction)?;
    decode(model, prompts, start, cache, options, chooser, on_token)
}

/// Decodes behind a prefill that began at `start` and left `logits`.
fn decode<P: AsRef<[u32]>>(
    model: &Model,
    prompts: &[P],
    (start, logits): (Instant, Tensor<2>),
    cache: &mut KvCache,
    options: &GenerateOptions,
    chooser: Chooser,
    mut on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
) -> Result<(Vec<Generation>, Timing)> {
    let device = cache.device().clone();
    device.sync()?;
    let prefilled = Instant::now();
    let mut rows =
        vec![Generation { tokens: Vec::new(), stopped: false, unseen: None }; prompts.len()];
    let found = if let (1.., [prompt], [row]) = (options.lookup, prompts, &mut rows[..]) {
        let hear = |token| row.take(token, &options.stop, |token| on_token(0, token));
        lookup::decode(model, (prompt.as_ref(), logits), cache, options, chooser, hear)?
    } else {
        rows::decode(model, (&mut rows, logits), cache, options, chooser, on_token)?
    };
    device.sync()?;
    let timing = Timing {
        prompt_tokens: prompts.iter().map(|prompt| prompt.as_ref().len()).sum(),
        prefill: prefilled - start,
        decode: prefilled.elapsed(),
        ..found
    };
    Ok((rows, timing))
}
