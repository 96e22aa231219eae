use briquette_kernels as kernels;
use burn::tensor::Tensor;

use super::super::{AccumulateInput, Nearest, NearestInput};

pub(super) fn nearest(input: NearestInput) -> kernels::Result<Nearest> {
    let NearestInput { pairs, fillers } = input;
    let found = kernels::nearest(kernels::Nearest { pairs, fillers })?;
    Ok(Nearest { similarity: found.similarity, index: found.index })
}

pub(super) fn accumulate(input: AccumulateInput) -> kernels::Result<Tensor<4>> {
    let AccumulateInput { x, weights, slot, span, slots } = input;
    kernels::accumulate(kernels::Accumulate { x, weights, slot, span, slots })
}
