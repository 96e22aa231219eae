use briquette_kernels as kernels;
use burn::tensor::Tensor;

use super::super::{Moments, MomentsInput, WindowInput};

pub(super) fn weights(input: WindowInput) -> kernels::Result<Tensor<4>> {
    kernels::window_weights(window(input))
}

pub(super) fn moments(input: MomentsInput) -> kernels::Result<Moments> {
    let MomentsInput { window: of, own, deviations, entropies } = input;
    let found = kernels::window_moments(kernels::WindowMoments {
        window: window(of),
        counted: own,
        deviations,
        entropies,
    })?;
    let kernels::WindowMomentsOutput { sums, deviations, entropies } = found;
    Ok(Moments { sums, deviations, entropies })
}

fn window(input: WindowInput) -> kernels::Window {
    let WindowInput { queries, keys, visibility, scale } = input;
    kernels::Window {
        queries,
        keys,
        query_positions: visibility.queries,
        entry_positions: visibility.entries,
        by_position: visibility.by_position,
        scale,
    }
}
