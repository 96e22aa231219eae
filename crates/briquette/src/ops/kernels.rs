use super::{Ops, RaggedInput, RaggedOutput, SharedInput, SharedOutput};

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

    fn shared_attention(&self, input: &SharedInput) -> Option<SharedOutput> {
        let input = input.clone();
        let wanted = input.weights;
        let rotary = |rotary: super::RotaryInput| briquette_kernels::RotaryTables {
            cosines: rotary.cosines,
            sines: rotary.sines,
            positions: rotary.positions,
        };
        let found = briquette_kernels::shared_attention(briquette_kernels::SharedAttention {
            queries: input.queries,
            directions: input.directions,
            values: input.values,
            members: input.members,
            entry: input.entry,
            norms: input.norms,
            offsets: input.offsets,
            width: input.width,
            rotary: input.rotary.map(rotary),
            tail_keys: input.tail_keys,
            tail_values: input.tail_values,
            tail: input.tail,
            scale: input.scale,
            weights: wanted,
        })
        .ok()?;
        Some(SharedOutput { output: found.output, weights: wanted.then_some(found.weights) })
    }
}
