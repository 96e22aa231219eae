use briquette_kernels as kernels;

use burn::tensor::{Int, Tensor};

use super::super::{Groups, SelectInput, Selection, Split};
use crate::{Error, Result, cache::Entries};

/// Selects, and with `splits` says what is left.
pub(super) fn select(
    input: SelectInput<'_>,
    splits: bool,
) -> kernels::Result<kernels::SelectOutput> {
    let SelectInput { scores, held, keep, sinks, recent, .. } = input;
    kernels::select(kernels::Select { scores: scores.clone(), held, keep, sinks, recent, splits })
}

/// Reads the counts of NaN, if they are to be looked at.
pub(super) fn check(found: &kernels::SelectOutput, input: &SelectInput<'_>) -> Result<()> {
    if input.check {
        let counts = found.nan.clone().try_into_vec_as::<i64>()?;
        if let Some(&count) = counts.iter().find(|&&count| count > 0) {
            let (layer, count) = (input.layer, count as usize);
            return Err(Error::NotFinite { what: "scores", layer, count });
        }
    }
    Ok(())
}

pub(super) fn split(found: kernels::SelectOutput) -> Split {
    let [batch, heads, _] = found.indices.dims();
    let device = found.indices.device();
    let rest = match found.rest {
        Some((indices, counts)) => Selection { indices, counts },
        None => Selection {
            indices: Tensor::empty([batch, heads, 0], &device),
            counts: vec![0; batch * heads],
        },
    };
    Split { kept: Selection { indices: found.indices, counts: found.counts }, rest }
}

pub(super) fn group(classes: Tensor<3, Int>, number: usize) -> kernels::Result<Groups> {
    let kernels::Groups { order, members, none } = kernels::group(classes, number)?;
    Ok(Groups { order, members, none })
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
