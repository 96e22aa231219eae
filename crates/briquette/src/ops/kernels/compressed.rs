use briquette_kernels as kernels;

use super::super::{DecodeOutput, PackedInput, QuantizedInput, RotaryInput, SharedInput};

pub(super) fn shared(input: &SharedInput) -> kernels::Result<DecodeOutput> {
    let input = input.clone();
    let wanted = input.weights;
    let rotary = |rotary: RotaryInput| kernels::RotaryTables {
        cosines: rotary.cosines,
        sines: rotary.sines,
        positions: rotary.positions,
    };
    let found = kernels::shared_attention(kernels::SharedAttention {
        queries: input.queries,
        directions: input.directions,
        values: input.values,
        members: input.members,
        entry: input.entry,
        norms: input.norms,
        fillers: input.fillers,
        offsets: input.offsets,
        rotary: input.rotary.map(rotary),
        tail_keys: input.tail_keys,
        tail_values: input.tail_values,
        tail: input.tail,
        scale: input.scale,
        weights: wanted,
    })?;
    Ok(DecodeOutput { output: found.output, weights: wanted.then_some(found.weights) })
}

pub(super) fn quantized(input: &QuantizedInput) -> kernels::Result<DecodeOutput> {
    let input = input.clone();
    let wanted = input.weights;
    let packed = |packed: PackedInput| kernels::PackedGroups {
        words: packed.words,
        scale: packed.scale,
        min: packed.min,
    };
    let found = kernels::quantized_attention(kernels::QuantizedAttention {
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
    })?;
    Ok(DecodeOutput { output: found.output, weights: wanted.then_some(found.weights) })
}
