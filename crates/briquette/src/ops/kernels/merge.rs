use briquette_kernels as kernels;
use burn::tensor::Tensor;

use super::super::{AccumulateInput, MergeInput, Nearest, NearestInput};

pub(super) fn nearest(input: NearestInput) -> kernels::Result<Nearest> {
    let NearestInput { pairs, fillers } = input;
    let found = kernels::nearest(kernels::Nearest { pairs, fillers })?;
    Ok(Nearest { similarity: found.similarity, index: found.index })
}

pub(super) fn accumulate(input: AccumulateInput) -> kernels::Result<Tensor<4>> {
    let AccumulateInput { x, weights, slot, span, slots } = input;
    kernels::accumulate(kernels::Accumulate { x, weights, slot, span, slots })
}

/// Every row looks through all others: of many they are sorted first.
const MOST_OTHERS: usize = 1024;

/// `None` if there are so many, or no kernel takes them.
pub(super) fn merge(input: &MergeInput) -> Option<(Tensor<4>, Tensor<4>)> {
    if input.weights.dims()[2] > MOST_OTHERS {
        return None;
    }
    let MergeInput { keys, values, own, other_keys, other_values, weights, slot, directions } =
        input.clone();
    let call =
        kernels::Merge { keys, values, own, other_keys, other_values, weights, slot, directions };
    kernels::merge(call).ok()
}
