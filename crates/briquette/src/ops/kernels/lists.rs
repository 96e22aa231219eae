use briquette_kernels as kernels;
use burn::tensor::{Int, Tensor};

use super::super::{LayOutInput, PackInput};
use crate::cache::Tracks;

pub(super) fn lay_out(input: LayOutInput) -> kernels::Result<[Tensor<4>; 2]> {
    let LayOutInput { keys, values, offsets, width, tail_keys, tail_values, tail } = input;
    kernels::lay_out(kernels::LayOut { keys, values, offsets, width, tail_keys, tail_values, tail })
}

pub(super) fn pack(input: PackInput<'_>) -> kernels::Result<[Tensor<2>; 2]> {
    let PackInput { keys, values, counts, offsets } = input;
    kernels::pack(kernels::Pack { keys, values, counts, offsets })
}

/// Columns and others behind them.
pub(super) fn join(
    [positions, more]: [Tensor<3, Int>; 2],
    tracks: &Tracks,
    more_tracks: &Tracks,
) -> kernels::Result<(Tensor<3, Int>, Tracks)> {
    let columns = |positions: Tensor<3, Int>, tracks: &Tracks| kernels::Columns {
        positions,
        tracks: tracks.iter().cloned().collect(),
    };
    let found = kernels::join(columns(positions, tracks), columns(more, more_tracks))?;
    let mut of_tracks = found.tracks.into_iter();
    // As many come back as went in.
    let tracks = tracks.clone().map(|track| of_tracks.next().unwrap_or(track));
    Ok((found.positions, tracks))
}
