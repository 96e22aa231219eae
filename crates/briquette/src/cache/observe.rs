//! What stages want to know of the attention.

use burn::tensor::Tensor;

use super::{
    Track, Tracks,
    append::Appended,
    attend::ranks,
    context::Context,
    place::Placed,
    progress::{Arrival, Phase},
    query_window::QueryWindow,
};
use crate::{
    Result,
    observes::ObservedHeads,
    ops::{Visibility, group_mean},
    policy::PositionMode,
    position::{Encode, encode},
    store::Store,
    view::{Wanted, Window},
};

/// The last queries of a layer, this call's the newest, and the entries they see.
pub(super) fn window<'a>(
    context: Context<'a>,
    placed: &Placed,
    all: &mut Appended,
    encode_keys: Option<Encode<'a>>,
    before: &QueryWindow,
    store: &dyn Store,
) -> Result<Window<'a>> {
    let Context { policy, config, encoding, .. } = context;
    let ops = config.ops.as_ref();
    let last = before.with(&placed.queries, &placed.arrival.positions);
    let size = last.positions.dims()[2];
    let queries = match policy.positions() {
        PositionMode::Written | PositionMode::Deferred => last.queries,
        PositionMode::InCache => {
            let ranks = ranks(context, placed, all).of_last(size);
            encode(encoding, last.queries, ranks, placed.end, ops)?
        }
    };
    Ok(Window {
        queries,
        entries: all.entries(store, &placed.held)?.clone(),
        encode: encode_keys,
        // Entries between the window's own may have been evicted since.
        visibility: match all.padded || size > 1 {
            false => Visibility::Causal,
            true => {
                Visibility::Positions { queries: last.positions, entries: all.positions.clone() }
            }
        },
        scale: context.scale(),
        ops,
        known: Default::default(),
    })
}

/// Adds what this call's queries gave to each entry. `window` is there when a prompt is complete or
/// compressed. Takes and returns the decoded queries in the local window.
pub(super) fn count(
    context: Context<'_>,
    arrival: &Arrival,
    tracks: &mut Tracks,
    (sums, squares): (Option<Tensor<3>>, Option<Tensor<3>>),
    window: Option<&Window<'_>>,
    local_queries: usize,
) -> Result<usize> {
    let Context { shape, observes, .. } = context;
    let of_heads = |x: Tensor<3>| match observes.heads {
        ObservedHeads::Kv => group_mean(x, shape.kv_heads),
        ObservedHeads::Query => x,
    };
    let sums = sums.map(of_heads);
    let add = |tracks: &mut Tracks, track, new: Option<Tensor<3>>| {
        if let (Some(held), Some(new)) = (tracks.get_mut(track), new) {
            held.inplace(|held| held + new);
        }
    };
    add(tracks, Track::Sums, sums.clone());
    add(tracks, Track::Squares, squares);
    if observes.local == 0 {
        return Ok(0);
    }
    let set = |tracks: &mut Tracks, track, new: Tensor<3>| {
        if let Some(held) = tracks.get_mut(track) {
            *held = new;
        }
    };
    if let Some(window) = window {
        let last = window.moments(observes.local, &arrival.of_prompt, Wanted::default())?;
        let past = of_heads(last.sums.sums);
        set(tracks, Track::LocalCurrent, past.zeros_like());
        set(tracks, Track::LocalPast, past);
        return Ok(0);
    }
    if let Phase::Prompt { .. } = arrival.phase {
        return Ok(local_queries);
    }
    add(tracks, Track::LocalCurrent, sums);
    let queries = local_queries + 1;
    if queries < observes.local {
        return Ok(queries);
    }
    if let Some(current) = tracks.get(Track::LocalCurrent).cloned() {
        set(tracks, Track::LocalCurrent, current.zeros_like());
        set(tracks, Track::LocalPast, current);
    }
    Ok(0)
}
