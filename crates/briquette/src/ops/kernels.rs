use burn::tensor::Tensor;

use super::{
    AccumulateInput, Moments, MomentsInput, Nearest, NearestInput, Ops, RaggedInput, RaggedOutput,
    Reference, WindowInput,
};

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

    /// The kernel; where the device has none or cannot launch so much, tensor operations.
    fn accumulate(&self, input: AccumulateInput) -> Tensor<4> {
        let AccumulateInput { x, weights, slot, span, slots } = input.clone();
        briquette_kernels::accumulate(briquette_kernels::Accumulate {
            x,
            weights,
            slot,
            span,
            slots,
        })
        .unwrap_or_else(|_| Reference.accumulate(input))
    }

    /// The kernel; where the device has none, cannot launch so much, or a pair has two types, tensor operations.
    fn nearest(&self, input: NearestInput) -> Nearest {
        let NearestInput { pairs, fillers } = input.clone();
        match briquette_kernels::nearest(briquette_kernels::Nearest { pairs, fillers }) {
            Ok(found) => Nearest { similarity: found.similarity, index: found.index },
            Err(_) => Reference.nearest(input),
        }
    }

    /// The kernel; where the device has none or cannot launch so much, tensor operations.
    fn window_weights(&self, input: WindowInput) -> Tensor<4> {
        briquette_kernels::window_weights(window(input.clone()))
            .unwrap_or_else(|_| Reference.window_weights(input))
    }

    /// The kernel; where the device has none or cannot launch so much, tensor operations.
    fn window_moments(&self, input: MomentsInput) -> Moments {
        let MomentsInput { window: of, own, deviations, entropies } = input.clone();
        let of = briquette_kernels::WindowMoments {
            window: window(of),
            counted: own,
            deviations,
            entropies,
        };
        match briquette_kernels::window_moments(of) {
            Ok(briquette_kernels::WindowMomentsOutput { sums, deviations, entropies }) => {
                Moments { sums, deviations, entropies }
            }
            Err(_) => Reference.window_moments(input),
        }
    }
}

fn window(input: WindowInput) -> briquette_kernels::Window {
    let WindowInput { queries, keys, visibility, scale } = input;
    briquette_kernels::Window {
        queries,
        keys,
        query_positions: visibility.queries,
        entry_positions: visibility.entries,
        by_position: visibility.by_position,
        scale,
    }
}
