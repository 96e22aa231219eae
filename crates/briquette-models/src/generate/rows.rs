//! Rows of a batch, decoded until all have ended.

use std::ops::ControlFlow;

use briquette::KvCache;
use burn::tensor::Tensor;

use crate::{
    GenerateOptions, Generation, Model, Result, Timing,
    generate::{choose::Chooser, prefill::columns, steps::Steps},
};

/// Decodes behind prompts that left `logits`, each of the `rows` until it ends, and counts what
/// that took.
///
/// # Errors
/// As [`Model::forward`] and [`KvCache::select_rows`]; of a store that selects no rows before the
/// first token.
pub(crate) fn decode(
    model: &Model,
    (rows, mut logits): (&mut [Generation], Tensor<2>),
    cache: &mut KvCache,
    options: &GenerateOptions,
    mut chooser: Chooser,
    mut on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
) -> Result<Timing> {
    if rows.len() > 1 && !options.keep_rows {
        cache.fork().select_rows(&[0])?;
    }
    // The rows of the cache, and the places of those that had not ended before the last token.
    let mut held: Vec<usize> = (0..rows.len()).collect();
    let mut living = held.clone();
    let mut timing = Timing::default();
    let mut steps = Steps::new(model, cache, held.len(), options.max_new_tokens, options);
    for left in (0..options.max_new_tokens).rev() {
        let chosen = chooser.choose(logits, &held, |row| rows[row].stopped)?;
        for &place in &living {
            let row = held[place];
            timing.decoded_tokens += usize::from(timing.steps > 0);
            let _ = rows[row].take(chosen[place], &options.stop, |token| on_token(row, token));
        }
        let lives = |&place: &usize| !rows[held[place]].stopped;
        let still: Vec<usize> = living.iter().copied().filter(lives).collect();
        if left == 0 || still.is_empty() {
            break;
        }
        living = still;
        for row in rows.iter_mut().filter(|row| row.stopped) {
            row.unseen = None;
        }
        if !options.keep_rows && steps.may_lose(held.len() - living.len(), held.len()) {
            steps.count(&mut timing);
            drop(steps);
            cache.select_rows(&living)?;
            held = living.iter().map(|&place| held[place]).collect();
            living = (0..held.len()).collect();
            steps = Steps::new(model, cache, held.len(), left, options);
        }
        // A row at rest is fed a token too, whose output is not looked at.
        let next = held.iter().map(|&row| rows[row].unseen.unwrap_or(0)).collect();
        logits = steps.next(columns(next, [held.len(), 1], model))?;
        timing.steps += 1;
    }
    steps.count(&mut timing);
    drop(steps);
    if !options.keep_rows && living.len() < held.len() {
        cache.select_rows(&living)?;
    }
    Ok(timing)
}
