use briquette_kernels as kernels;

use super::super::{SelectInput, Selection};
use crate::{Error, Result, cache::Entries};

pub(super) fn select(input: SelectInput<'_>) -> kernels::Result<kernels::SelectOutput> {
    let SelectInput { scores, held, keep, sinks, recent, .. } = input;
    kernels::select(kernels::Select { scores: scores.clone(), held, keep, sinks, recent })
}

/// Reads the counts of NaN, if they are to be looked at.
pub(super) fn checked(found: kernels::SelectOutput, input: &SelectInput<'_>) -> Result<Selection> {
    if input.check {
        let counts = found.nan.try_into_vec_as::<i64>()?;
        if let Some(&count) = counts.iter().find(|&&count| count > 0) {
            let (layer, count) = (input.layer, count as usize);
            return Err(Error::NotFinite { what: "scores", layer, count });
        }
    }
    Ok(Selection { indices: found.indices, counts: found.counts })
}

pub(super) fn compact(entries: &Entries, selection: &Selection) -> kernels::Result<Entries> {
    let call = kernels::CompactEntries {
        keys: entries.keys.clone(),
        values: entries.values.clone(),
        positions: entries.positions.clone(),
        tracks: entries.tracks.iter().cloned().collect(),
    };
    let found = kernels::compact(call, selection.indices.clone(), &selection.counts)?;
    let mut tracks = found.tracks.into_iter();
    Ok(Entries {
        keys: found.keys,
        values: found.values,
        positions: found.positions,
        // As many come back as went in.
        tracks: entries.tracks.clone().map(|track| tracks.next().unwrap_or(track)),
        sharing: None,
    })
}
