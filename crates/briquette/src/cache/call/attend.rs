//! Attention of the new queries over all entries.

use burn::tensor::{Int, Tensor};

use super::{
    cache_positions::CachePositions, input::LayerInput, statistics::window_is_query,
    working_set::WorkingSet,
};
use crate::{
    Result,
    cache::{context::Context, shared_attention::Asked},
    ops::{AttentionOutput, ClusterTable, Entries, Ops, Scoring, Visibility, Window},
    policy::PositionMode,
    position::{Encode, encode_queries},
    store::{Store, StoreQuery, attend_entries},
};

/// Encoding of the layer's keys in this call; `None` if the store holds them encoded.
pub(in crate::cache) fn key_encoding<'a>(
    context: Context<'a>,
    input: &LayerInput,
    all: &mut WorkingSet,
    store: &dyn Store,
) -> Result<Option<Encode<'a>>> {
    let Context { policy, encoding, config, .. } = context;
    let positions = match policy.positions() {
        PositionMode::Written => return Ok(None),
        PositionMode::InCache => {
            CachePositions::new(context, input, all).of_entries(&all.positions(store))?
        }
        PositionMode::Deferred if policy.reducer().encodes_at_representative() => {
            representative_positions(all.entries(store, &input.held)?, config.ops.as_ref())?
        }
        PositionMode::Deferred => all.positions(store),
    };
    Ok(Some(Encode { encoding, positions, end: input.end }))
}

/// Returns the queries of a call as they attend: with their positions encoded.
pub(super) fn asked(
    context: Context<'_>,
    input: &LayerInput,
    all: &WorkingSet,
    encode: Option<&Encode<'_>>,
) -> Result<Tensor<4>> {
    let Context { policy, config, encoding, .. } = context;
    let queries = input.queries.queries.clone();
    match policy.positions() {
        PositionMode::Written | PositionMode::Deferred => Ok(queries),
        PositionMode::InCache => {
            let positions = CachePositions::new(context, input, all);
            let ranks = encode.map(|keys| &keys.positions);
            let positions = positions.of_newest(ranks).unwrap_or_else(|| positions.of_new(input));
            encode_queries(encoding, queries, positions, input.end, config.ops.as_ref())
        }
    }
}

/// How query-key products of a call become weights. A window that hides nothing is left out, so
/// that kernels take the call.
fn scoring_of_call(context: Context<'_>, input: &LayerInput) -> Scoring {
    let scoring = context.scoring();
    let hides = |window: &Window| {
        let is_in_it = |counts: &[usize]| counts.iter().all(|&count| count <= window.size());
        let is_whole = is_in_it(input.span.seen());
        match window {
            // The newest tokens are held, so that as few as a window are in that of one query.
            Window::Sliding(_) => !(is_whole || input.is_one_query() && is_in_it(&input.held)),
            // Steps that are recorded in the first chunk go on behind it.
            Window::Chunk(_) => !(is_whole && input.span.phase.is_prompt()),
        }
    };
    Scoring { window: scoring.window.filter(hides), ..scoring }
}

/// Computes the attention of the new queries, and the sums of weights that the stages observe.
pub(in crate::cache) fn attend(
    context: Context<'_>,
    input: &LayerInput,
    all: &WorkingSet,
    encode: Option<Encode<'_>>,
    store: &dyn Store,
) -> Result<AttentionOutput> {
    let Context { policy, config, observes, .. } = context;
    let LayerInput { span, queries, .. } = input;
    let is_told = all.loose().is_none() && input.is_told_by(store);
    let scoring = scoring_of_call(context, input);
    let query = StoreQuery {
        queries: asked(context, input, all, encode.as_ref())?,
        // A query that is padding sees nothing, whatever its column.
        visibility: match span.padded || (all.padded && !is_told) || scoring.reads_positions() {
            false => Visibility::Causal,
            true => Visibility::Positions {
                queries: queries.positions.clone(),
                entries: all.positions(store),
            },
        },
        encode,
        patterns: match (policy.sparse_prefill(), span.phase.is_prompt()) {
            (Some(prefill), true) => {
                Some(prefill.patterns(context.layer, context.shape, policy.profile()))
            }
            _ => None,
        },
        scoring,
        column_sums: observes.column_sums || observes.local > 0 || window_is_query(context, input),
        column_squares: observes.column_squares && !input.is_one_query(),
        ops: config.ops.as_ref(),
    };
    match (all.loose(), context.shared) {
        (Some(loose), Some(shared)) if query.patterns.is_none() => {
            let asked = Asked {
                positions: policy.positions(),
                column_sums: query.column_sums,
                column_squares: query.column_squares,
            };
            shared.get_or_compute(asked, || attend_entries(loose.clone(), query))
        }
        (Some(loose), _) => attend_entries(loose.clone(), query),
        (None, _) => store.attend(query),
    }
}

/// The position of each token's representative, `[batch, kv_heads, columns]`.
pub(in crate::cache) fn representative_positions(
    entries: &Entries,
    ops: &dyn Ops,
) -> Result<Tensor<3, Int>> {
    let Some(table) = ClusterTable::of(entries, ops)? else { return Ok(entries.positions.clone()) };
    Ok(entries.positions.clone().gather(2, table.representatives.gather(2, table.rows)))
}
