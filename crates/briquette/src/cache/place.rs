//! The tokens of one call, placed among what the layer has seen.

use burn::tensor::{Int, Tensor};

use super::{
    AttentionStatistics, Entries, context::Context, progress::Arrival, query_window::Queries,
};
use crate::{Error, Result, policy::PositionMode, position::encode};

/// Queries, keys and values of one call: checked, padding zeroed, positions not yet encoded.
#[derive(Clone, Debug)]
pub(super) struct Projections {
    pub(super) queries: Tensor<4>,
    pub(super) keys: Tensor<4>,
    pub(super) values: Tensor<4>,
}

impl Projections {
    /// Zeros where `positions` are those of padding: whatever stands there must not reach a sum.
    pub(super) fn without_padding(self, positions: &Tensor<3, Int>) -> Self {
        let padding = positions.clone().lower_scalar(0).unsqueeze_dim::<4>(3);
        let clear = |x: Tensor<4>| {
            let mask = padding.clone().expand(x.dims());
            x.mask_fill(mask, 0.0)
        };
        Self { queries: clear(self.queries), keys: clear(self.keys), values: clear(self.values) }
    }
}

/// The tokens of a call, placed. Heads: one number a batch row and kv head, rows first.
pub(super) struct Placed {
    pub(super) arrival: Arrival,
    /// The new queries, positions encoded unless they are re-counted in every call.
    pub(super) queries: Queries,
    /// The same before positions are encoded, if they are held.
    pub(super) plain: Option<Queries>,
    /// Bytes of a number of the queries, as they came.
    pub(super) query_bytes: usize,
    /// New tokens by rows, padding not counted.
    pub(super) arrived: Vec<usize>,
    /// The same by heads.
    pub(super) arrived_by_head: Vec<usize>,
    /// Tokens held with them, by heads.
    pub(super) held: Vec<usize>,
    /// All positions that are encoded in this call are below this one.
    pub(super) end: usize,
}

/// Places what arrives behind the tokens `held`, by heads: its counts, its queries and its entries. `positions` are the
/// arrival's, `[batch, 1, new]`.
pub(super) fn place(
    context: Context<'_>,
    arrival: Arrival,
    new: Projections,
    positions: Tensor<3, Int>,
    held: &[usize],
) -> Result<(Placed, Entries)> {
    let Context { shape, config, encoding, .. } = context;
    let [batch, _, columns, _] = new.queries.dims();
    let mode = context.policy.positions();
    let seen = arrival.seen().iter().zip(&arrival.seen_before);
    let arrived: Vec<usize> = seen.map(|(after, before)| after - before).collect();
    let arrived_by_head: Vec<usize> =
        arrived.iter().flat_map(|&new| std::iter::repeat_n(new, shape.kv_heads)).collect();
    let before = |head: usize| held.get(head).copied().unwrap_or(0);
    let held: Vec<usize> =
        arrived_by_head.iter().enumerate().map(|(head, new)| before(head) + new).collect();
    let most = encoding.max_positions().unwrap_or(usize::MAX);
    let end = check_positions(context, &arrival, &held)?.max(context.reach.min(most));

    let encoded = |x| encode(encoding, x, positions.clone(), end, config.ops.as_ref());
    let query_bytes = new.queries.dtype().size();
    let plain = context
        .observes
        .holds_queries()
        .then(|| Queries { queries: new.queries.clone(), positions: positions.clone() });
    let queries = match mode {
        PositionMode::InCache => new.queries,
        PositionMode::Written | PositionMode::Deferred => encoded(new.queries)?,
    };
    let keys = match mode {
        PositionMode::Written => encoded(new.keys)?,
        PositionMode::InCache | PositionMode::Deferred => new.keys,
    };
    let entries = Entries {
        keys: keys.cast(config.dtype),
        values: new.values.cast(config.dtype),
        positions: positions.clone().expand([batch, shape.kv_heads, columns]),
        tracks: AttentionStatistics::default(),
        sharing: None,
    };
    let queries = Queries { queries, positions };
    let placed =
        Placed { arrival, queries, plain, query_bytes, arrived, arrived_by_head, held, end };
    Ok((placed, entries))
}

/// Refuses positions the encoding has no entry for. Returns one more than the highest.
fn check_positions(context: Context<'_>, arrival: &Arrival, held: &[usize]) -> Result<usize> {
    let counted = match context.policy.positions() {
        PositionMode::Written | PositionMode::Deferred => arrival.seen(),
        PositionMode::InCache => held,
    };
    let position = counted.iter().copied().max().unwrap_or(0).saturating_sub(1);
    match context.encoding.max_positions() {
        Some(max) if position >= max => Err(Error::PositionOverflow { position, max }),
        _ => Ok(position.saturating_add(1)),
    }
}
