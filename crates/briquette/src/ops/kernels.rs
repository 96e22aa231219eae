use super::{
    DecodeOutput, Ops, PackedInput, QuantizedInput, RaggedInput, RaggedOutput, RotaryInput,
    SharedInput,
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

    fn shared_attention(&self, input: &SharedInput) -> Option<DecodeOutput> {
        let input = input.clone();
        let wanted = input.weights;
        let rotary = |rotary: RotaryInput| briquette_kernels::RotaryTables {
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
        Some(DecodeOutput { output: found.output, weights: wanted.then_some(found.weights) })
    }

    fn quantized_attention(&self, input: &QuantizedInput) -> Option<DecodeOutput> {
        let input = input.clone();
        let wanted = input.weights;
        let packed = |packed: PackedInput| briquette_kernels::PackedGroups {
            words: packed.words,
            scale: packed.scale,
            min: packed.min,
        };
        let found = briquette_kernels::quantized_attention(briquette_kernels::QuantizedAttention {
            queries: input.queries,
            keys: packed(input.keys),
            values: packed(input.values),
            bits: input.bits,
            group: input.group,
            pages: input.pages,
            offsets: input.offsets,
            most_pages: input.most_pages,
            tail_keys: input.tail_keys,
            tail_values: input.tail_values,
            tail: input.tail,
            tail_fillers: input.tail_fillers,
            columns: input.columns,
            scale: input.scale,
            weights: wanted,
        })
        .ok()?;
        Some(DecodeOutput { output: found.output, weights: wanted.then_some(found.weights) })
    }
}
