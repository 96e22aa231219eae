//! The tracks of a policy: what is counted of each entry because its stages observe it.

use burn::tensor::Device;

use crate::{
    CacheShape, Result,
    observes::{ObservedHeads, Observes},
    ops::{Track, Tracks},
    prefix::Parts,
};

/// The tracks a policy that observes this keeps.
fn kinds(observes: Observes) -> Vec<Track> {
    let Observes { column_sums, column_squares, local, chunk, .. } = observes;
    let mut kinds = Vec::new();
    if column_sums || local > 0 {
        kinds.push(Track::Sums);
    }
    if column_squares {
        kinds.push(Track::Squares);
    }
    if local > 0 {
        kinds.extend([Track::LocalPast, Track::LocalCurrent]);
    }
    if chunk > 0 {
        kinds.push(Track::Chunk);
    }
    kinds
}

/// Heads a track has.
fn heads(observes: Observes, shape: CacheShape) -> usize {
    match observes.heads {
        ObservedHeads::Kv => shape.kv_heads,
        ObservedHeads::Query => shape.query_heads,
    }
}

/// Numbers the tracks of one entry are, all heads together, each in a row of its own.
pub(crate) fn rows(observes: Observes, shape: CacheShape) -> usize {
    kinds(observes).len() * heads(observes, shape)
}

/// The tracks of entries of which nothing has been counted yet.
pub(crate) fn zeros(
    observes: Observes,
    shape: CacheShape,
    batch: usize,
    entries: usize,
    device: &Device,
) -> Tracks {
    Tracks::zeros(&kinds(observes), [batch, heads(observes, shape), entries], device)
}

/// Puts tracks among the parts of a prefix.
pub(crate) fn save(tracks: &Tracks, parts: &mut Parts) -> Result<()> {
    tracks.stacked().map_or(Ok(()), |stacked| parts.put("tracks", stacked))
}

/// The tracks of a prefix, in the place of others of the same kinds and shape.
pub(crate) fn restore(none: Tracks, parts: &mut Parts, device: &Device) -> Result<Tracks> {
    let Some(dims) = none.stacked().map(|stacked| stacked.dims()) else { return Ok(none) };
    let stacked = parts.take_float("tracks", dims, device)?;
    Ok(none.map(|_| stacked))
}

/// The tracks of one batch row, for so many rows.
pub(crate) fn repeated(tracks: Tracks, rows: usize) -> Tracks {
    tracks.map(|stacked| {
        let [kinds, heads, entries] = stacked.dims();
        let all = stacked.unsqueeze_dim::<4>(1).expand([kinds, rows, heads, entries]);
        all.reshape([kinds * rows, heads, entries])
    })
}
