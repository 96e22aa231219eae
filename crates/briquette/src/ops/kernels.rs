use super::{Ops, RaggedInput, RaggedOutput, Reference, SelectInput, Selection, select};
use crate::{Error, Result, cache::Entries};

/// CubeCL kernels where the device runs them, Burn's tensor operations for all else.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kernels;

impl Ops for Kernels {
    fn ragged_attention(&self, input: &RaggedInput) -> Option<RaggedOutput> {
        let input = input.clone();
        let wanted = input.weights;
        let found = briquette_kernels::ragged_attention(briquette_kernels::RaggedAttention {
            queries: input.queries,
            keys: input.keys,
            values: input.values,
            offsets: input.offsets,
            tail_keys: input.tail_keys,
            tail_values: input.tail_values,
            tail: input.tail,
            scale: input.scale,
            weights: wanted,
        })
        .ok()?;
        let weights = wanted.then_some((found.weights, found.tail_weights));
        Some(RaggedOutput { output: found.output, weights })
    }

    /// On the device, with nothing read back but the counts of NaN that are asked for. On the host where there is no
    /// kernel, for more than one takes, and where nothing is to be kept.
    fn select(&self, input: SelectInput<'_>) -> Result<Selection> {
        let SelectInput { layer, scores, held, keep, sinks, recent, check } = input.clone();
        let scores = scores.clone();
        let call = briquette_kernels::Select { scores, held, keep, sinks, recent };
        let Ok(found) = briquette_kernels::select(call) else { return select::select(input) };
        if check {
            let counts = found.nan.try_into_vec_as::<i64>()?;
            if let Some(&count) = counts.iter().find(|&&count| count > 0) {
                return Err(Error::NotFinite { what: "scores", layer, count: count as usize });
            }
        }
        Ok(Selection { indices: found.indices, counts: found.counts })
    }

    /// In one launch. By tensor operations where there is no kernel, for more than one takes, and where nothing is kept.
    fn compact_entries(&self, entries: Entries, selection: &Selection) -> Entries {
        let call = briquette_kernels::CompactEntries {
            keys: entries.keys.clone(),
            values: entries.values.clone(),
            positions: entries.positions.clone(),
            tracks: entries.tracks.iter().cloned().collect(),
        };
        let indices = selection.indices.clone();
        let Ok(found) = briquette_kernels::compact(call, indices, &selection.counts) else {
            return Reference.compact_entries(entries, selection);
        };
        let mut tracks = found.tracks.into_iter();
        Entries {
            keys: found.keys,
            values: found.values,
            positions: found.positions,
            // As many come back as went in.
            tracks: entries.tracks.map(|track| tracks.next().unwrap_or(track)),
            sharing: None,
        }
    }
}
