//! Statistics of the attention that stages observe.

use std::cell::RefCell;

use burn::tensor::Tensor;

use super::{cache_positions::CachePositions, input::LayerInput, working_set::WorkingSet};
use crate::{
    Result,
    cache::{
        context::Context,
        progress::{InputSpan, Phase},
        queries::{chunk_sums::chunk_sums, window::QueryWindow},
    },
    ops::{AttentionStatistics, CountInput, Statistic, Visibility, group_mean},
    policy::PositionMode,
    position::{Encode, encode_queries},
    stage::ObservedHeads,
    store::Store,
    view::{Encoded, HeldQueries, Known, Moments, Window},
};

/// Whether the window is the only query of each row, so that its sums are the weights of the call.
/// False for a policy that does not compress in decoding, which looks at no window there.
pub(super) fn window_is_query(context: Context<'_>, input: &LayerInput) -> bool {
    let InputSpan { phase, padded, .. } = input.span;
    context.policy.schedule().decode_every.is_some()
        && context.observes.window == 1
        && input.is_one_query()
        && !phase.is_prompt()
        && !padded
}

/// Returns the last queries of a layer, those of this call included, and the entries they see.
/// `sums` are the summed weights of this call's queries.
pub(in crate::cache) fn window<'a>(
    context: Context<'a>,
    input: &LayerInput,
    all: &mut WorkingSet,
    encode_keys: Option<Encode<'a>>,
    before: &QueryWindow,
    sums: Option<&Tensor<3>>,
    store: &dyn Store,
) -> Result<Window<'a>> {
    let Context { policy, config, encoding, .. } = context;
    let ops = config.ops.as_ref();
    let last = before.with(&input.queries, &input.span.positions);
    let size = last.positions.dims()[2];
    let queries = match policy.positions() {
        PositionMode::Written | PositionMode::Deferred => last.queries,
        PositionMode::InCache => {
            let positions = CachePositions::new(context, input, all);
            let ranks = encode_keys.as_ref().map(|keys| &keys.positions);
            let positions = positions.of_newest(ranks).unwrap_or_else(|| positions.of_last(size));
            encode_queries(encoding, last.queries, positions, input.end, ops)?
        }
    };
    let known = match sums.filter(|_| window_is_query(context, input)) {
        Some(sums) => Known::of_query(sums.clone(), &input.arrived),
        None => Known::default(),
    };
    let scoring = context.scoring();
    Ok(Window {
        queries,
        entries: all.entries(store, &input.held)?.clone(),
        encode: encode_keys,
        // Entries between the window's own may have been evicted since.
        visibility: match all.padded || size > 1 || scoring.reads_positions() {
            false => Visibility::Causal,
            true => {
                Visibility::Positions { queries: last.positions, entries: all.positions(store) }
            }
        },
        scoring,
        ops,
        known: RefCell::new(known),
    })
}

/// Encoding of positions in this call, for the stages.
pub(in crate::cache) fn encoded<'a>(
    context: Context<'a>,
    input: &LayerInput,
    keys: Option<Encode<'a>>,
) -> Encoded<'a> {
    let next = match context.policy.positions() {
        PositionMode::Written | PositionMode::Deferred => input.span.seen().to_vec(),
        PositionMode::InCache => {
            let most = |held: &[usize]| held.iter().copied().max().unwrap_or(0);
            input.held.chunks(context.shape.kv_heads).map(most).collect()
        }
    };
    Encoded { keys, encoding: context.encoding, next }
}

/// Sums the weights that the `queries` since the last compression give to the entries of their
/// chunks.
pub(in crate::cache) fn count_chunks(
    context: Context<'_>,
    input: &LayerInput,
    queries: &HeldQueries,
    all: &mut WorkingSet,
    store: &dyn Store,
) -> Result<()> {
    let Some(before) = all.statistics.get(Statistic::Chunk) else { return Ok(()) };
    let entries = all.entries(store, &input.held)?.clone();
    let Context { shape, observes, .. } = context;
    let sums = chunk_sums(context, queries, input.span.seen(), &entries)?;
    let Some((sums, new)) = sums else { return Ok(()) };
    let sums = match observes.heads {
        ObservedHeads::Kv => group_mean(sums, shape.kv_heads),
        ObservedHeads::Query => sums,
    };
    let new = new.expand(before.dims());
    all.statistics.set(&[(Statistic::Chunk, before.mask_where(new, sums))]);
    Ok(())
}

/// Adds the weights of this call's queries to the statistics of each entry, those of one query with
/// their squares. `window` is given when a prompt is complete or compressed. Takes and returns the
/// number of decoded queries in the local window.
pub(in crate::cache) fn count(
    context: Context<'_>,
    input: &LayerInput,
    statistics: &mut AttentionStatistics,
    (sums, squares): (Option<Tensor<3>>, Option<Tensor<3>>),
    window: Option<&Window<'_>>,
    local_queries: usize,
) -> Result<usize> {
    let Context { shape, observes, config, .. } = context;
    let span = &input.span;
    let decoded = observes.local > 0 && !matches!(span.phase, Phase::Prompt { .. });
    let counted_now = decoded && window.is_none();
    if let Some(weights) = sums {
        let local = counted_now.then_some(Statistic::LocalCurrent);
        let squares = input.is_one_query().then_some(Statistic::Squares);
        let kinds: Vec<_> = [Statistic::Sums].into_iter().chain(local).chain(squares).collect();
        let input = CountInput { statistics: std::mem::take(statistics), weights, kinds: &kinds };
        *statistics = config.ops.count(input)?;
    }
    if let Some(squares) = squares {
        statistics.add(&[(Statistic::Squares, squares)]);
    }
    if observes.local == 0 {
        return Ok(0);
    }
    if let Some(window) = window {
        let last = window.moments(observes.local, &span.of_prompt, Moments::default())?;
        let past = match observes.heads {
            ObservedHeads::Kv => group_mean(last.sums.sums, shape.kv_heads),
            ObservedHeads::Query => last.sums.sums,
        };
        statistics
            .set(&[(Statistic::LocalCurrent, past.zeros_like()), (Statistic::LocalPast, past)]);
        return Ok(0);
    }
    if !counted_now {
        return Ok(local_queries);
    }
    let queries = local_queries + 1;
    if queries < observes.local {
        return Ok(queries);
    }
    if let Some(current) = statistics.get(Statistic::LocalCurrent) {
        statistics.set(&[
            (Statistic::LocalCurrent, current.zeros_like()),
            (Statistic::LocalPast, current),
        ]);
    }
    Ok(0)
}
