use briquette_kernels::RaggedAttention;
use burn::tensor::Tensor;

use super::{Ops, RaggedInput};

/// CubeCL kernels where the device runs them, Burn's tensor operations for all else.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kernels;

impl Ops for Kernels {
    fn ragged_attention(&self, input: &RaggedInput) -> Option<Tensor<4>> {
        let RaggedInput { queries, keys, values, offsets, tail_keys, tail_values, tail, scale } =
            input.clone();
        briquette_kernels::supports(&queries.device()).then(|| {
            briquette_kernels::ragged_attention(RaggedAttention {
                queries,
                keys,
                values,
                offsets,
                tail_keys,
                tail_values,
                tail,
                scale,
            })
        })
    }
}
