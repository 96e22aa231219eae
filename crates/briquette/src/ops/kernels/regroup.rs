use briquette_kernels as kernels;
use burn::tensor::{Int, Tensor};

use super::super::{ClassifyInput, ExtendInput, Extended, MergedInput, RegroupInput, Regrouped};
use crate::cache::Tracks;

pub(super) fn extend(input: ExtendInput<'_>) -> kernels::Result<Extended> {
    let ExtendInput { entry, norms, centers, counts, columns, rows } = input;
    let call = kernels::Extend { entry, norms, centers, counts, columns, rows };
    let kernels::Extended { rows, norms, centers } = kernels::extend(call)?;
    Ok(Extended { rows, norms, centers })
}

pub(super) fn classify(input: ClassifyInput<'_>) -> kernels::Result<(Tensor<3, Int>, Tensor<3>)> {
    let ClassifyInput { rows, left, entries, merged, centers, positions, scores, .. } = input;
    let merged = merged.map(|merged| {
        let MergedInput { rows, counts, nearest, first, similarity, threshold } = merged;
        kernels::MergedRows { rows, counts, nearest, first, similarity, threshold }
    });
    kernels::classify(kernels::Classify {
        rows,
        left,
        counts: entries,
        merged,
        centers,
        positions,
        scores,
    })
}

pub(super) fn regroup(input: &RegroupInput<'_>) -> kernels::Result<Regrouped> {
    let RegroupInput { columns, classes, order, counts, centers, entries, .. } = input.clone();
    let RegroupInput { rows, norms, lengths, positions, tracks, .. } = input.clone();
    let call = kernels::Regroup {
        columns,
        classes,
        order,
        counts,
        centers,
        entries,
        rows,
        norms,
        lengths,
        positions,
        tracks: tracks.iter().cloned().collect(),
    };
    let found = kernels::regroup(call)?;
    let mut of_tracks = found.tracks.into_iter();
    Ok(Regrouped {
        positions: found.positions,
        entry: found.entry,
        centers: found.centers,
        norms: found.norms,
        // As many come back as went in.
        tracks: Tracks::map(tracks, |track| of_tracks.next().unwrap_or(track)),
    })
}
