//! Prompt lookup: drafts that the text itself suggests.

use std::ops::ControlFlow;

use briquette::KvCache;
use burn::tensor::Tensor;

use crate::{
    GenerateOptions, Model, Result, Timing,
    generate::{choose::Chooser, prefill::columns},
};

/// The most last tokens that are looked up: `max_matching_ngram_size` of `transformers`.
const LONGEST: usize = 2;

/// Decodes behind a prompt that left `logits`, until `hear` breaks, and counts what that took. The
/// cache ends as without drafts.
///
/// # Errors
/// [`DraftRefused`](briquette::Error::DraftRefused) before the first token; otherwise as
/// [`Model::forward`].
pub(crate) fn decode(
    model: &Model,
    (prompt, mut logits): (&[u32], Tensor<2>),
    cache: &mut KvCache,
    options: &GenerateOptions,
    mut chooser: Chooser,
    mut hear: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Timing> {
    // A policy that takes no draft says so now.
    cache.fork().begin_decode(1)?;
    let context = model.context(cache.policy()).unwrap_or(usize::MAX);
    let end = prompt.len().saturating_add(options.max_new_tokens);
    let (mut text, mut draft) = (prompt.to_vec(), Vec::<u32>::new());
    let mut found = Timing::default();
    while text.len() < end {
        let mut heard = 0;
        let has_ended = chooser.choose_behind(logits, &draft)?.into_iter().any(|token| {
            heard += 1;
            text.push(token);
            hear(token).is_break()
        });
        found.accepted += heard - 1;
        // The token chosen last is not given yet, and what was drafted in its place goes.
        let wrong = draft.len() + 1 - heard;
        let seen = cache.columns_seen().into_iter().max().unwrap_or(0) - wrong;
        cache.truncate(seen)?;
        if has_ended || text.len() == end {
            break;
        }
        // A call adds a token to those of its draft, and the draft has positions too.
        let most = options.lookup.min(end - text.len() - 1).min(context.saturating_sub(seen + 1));
        let is_text = |token: &u32| !options.stop.contains(token);
        draft = behind_last(&text, most).iter().copied().take_while(is_text).collect();
        let given: Vec<u32> = text.last().into_iter().chain(&draft).copied().collect();
        let tokens = columns(given, [1, 1 + draft.len()], model);
        let hidden = match draft.len() {
            0 => model.decode(tokens, cache)?,
            drafted => cache.try_transaction(|cache| {
                cache.begin_decode(1 + drafted)?;
                model.decode(tokens, cache)
            })?,
        };
        logits = model.head(hidden)?.squeeze_dim(0);
        found.steps += 1;
        found.drafted += draft.len();
    }
    // A call gives one token, and those of its draft that are right.
    found.decoded_tokens = found.steps + found.accepted;
    Ok(found)
}

/// The tokens, `most` at most, behind the first place of the last [`LONGEST`] tokens, or of fewer;
/// none if not even the last one was there before.
fn behind_last(text: &[u32], most: usize) -> &[u32] {
    let start = (1..=LONGEST).rev().find_map(|length| {
        let last = &text[text.len().checked_sub(length)?..];
        let mut earlier = text[..text.len() - 1].windows(length);
        earlier.position(|tokens| tokens == last).map(|place| place + length)
    });
    let start = start.unwrap_or(text.len());
    &text[start..text.len().min(start.saturating_add(most))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_the_last_tokens_first_is_drafted() {
        let cases: [(&[u32], usize, &[u32]); 8] = [
            // Two tokens before one, the first place before later ones.
            (&[7, 8, 1, 2, 5, 1, 3, 6, 1, 2, 9, 1, 2], 3, &[5, 1, 3]),
            (&[7, 8, 1, 2, 5, 1, 3, 6, 4, 2], 3, &[5, 1, 3]),
            // Up to the last token, which may be part of the place.
            (&[1, 2, 1, 2], 9, &[1, 2]),
            (&[4, 4, 4, 4], 9, &[4, 4]),
            (&[4, 4], 9, &[4]),
            (&[1, 2, 3], 9, &[]),
            (&[1], usize::MAX, &[]),
            (&[1, 2, 1, 2], 0, &[]),
        ];
        for (text, most, expected) in cases {
            assert_eq!(behind_last(text, most), expected, "{text:?}, {most}");
        }
    }
}
