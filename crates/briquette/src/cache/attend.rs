//! Attention of the new queries over all entries.

use burn::tensor::{Int, Tensor};

use super::{Entries, append::Appended, context::Context, place::Placed, ranks::Ranks};
use crate::{
    Result,
    ops::{AttentionOutput, Ops, Table, Visibility},
    policy::PositionMode,
    position::{Encode, encode},
    store::{Store, StoreQuery, attend_entries},
};

/// How the keys of a layer are encoded in this call; `None` if they are held encoded.
pub(super) fn key_encoding<'a>(
    context: Context<'a>,
    placed: &Placed,
    all: &mut Appended,
    store: &dyn Store,
) -> Result<Option<Encode<'a>>> {
    let Context { policy, encoding, config, .. } = context;
    let positions = match policy.positions() {
        PositionMode::Written => return Ok(None),
        PositionMode::InCache => ranks(context, placed, all).of_entries(&all.positions),
        PositionMode::Deferred if policy.reducer().encodes_at_center() => {
            center_positions(all.entries(store, &placed.held)?, config.ops.as_ref())?
        }
        PositionMode::Deferred => all.positions.clone(),
    };
    Ok(Some(Encode { encoding, positions, end: placed.end }))
}

/// Attention of the new queries, and what is to be counted of their weights.
pub(super) fn attend(
    context: Context<'_>,
    placed: &Placed,
    all: &Appended,
    encode: Option<Encode<'_>>,
    store: &dyn Store,
) -> Result<AttentionOutput> {
    let Context { policy, config, encoding, observes, .. } = context;
    let Placed { arrival, queries, .. } = placed;
    let asked = match policy.positions() {
        PositionMode::Written | PositionMode::Deferred => queries.queries.clone(),
        PositionMode::InCache => {
            let ranks = ranks(context, placed, all).of_new(&arrival.positions, &placed.arrived);
            let queries = queries.queries.clone();
            self::encode(encoding, queries, ranks, placed.end, config.ops.as_ref())?
        }
    };
    let query = StoreQuery {
        queries: asked,
        // A query that is padding sees nothing, whatever its column.
        visibility: match all.padded || arrival.padded {
            false => Visibility::Causal,
            true => Visibility::Positions {
                queries: queries.positions.clone(),
                entries: all.positions.clone(),
            },
        },
        encode,
        patterns: match (policy.sparse_prefill(), arrival.phase.is_prompt()) {
            (Some(prefill), true) => Some(prefill.patterns(context.layer, context.shape)),
            _ => None,
        },
        scale: context.scale(),
        column_sums: observes.column_sums || observes.local > 0,
        column_squares: observes.column_squares,
        ops: config.ops.as_ref(),
    };
    match all.loose() {
        Some(loose) => attend_entries(loose.clone(), query),
        None => store.attend(query),
    }
}

/// The positions of entries, re-counted.
pub(super) fn ranks<'a>(context: Context<'a>, placed: &'a Placed, all: &Appended) -> Ranks<'a> {
    Ranks { held: &placed.held, shape: context.shape, padded: all.padded, device: context.device }
}

/// The position of each token's center, `[batch, kv_heads, columns]`.
fn center_positions(entries: &Entries, ops: &dyn Ops) -> Result<Tensor<3, Int>> {
    let Some(table) = Table::of(entries, ops)? else { return Ok(entries.positions.clone()) };
    Ok(entries.positions.clone().gather(2, table.centers.gather(2, table.rows)))
}
