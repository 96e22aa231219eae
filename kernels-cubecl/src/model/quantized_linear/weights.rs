use cubecl::prelude::*;

/// Weights whose levels lie together.
pub(super) const BLOCK: usize = 32;
/// Words that are loaded at once.
pub(super) const PIECE: usize = 4;

/// Format of quantized weights, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WeightsBlueprint {
    /// Bits of a level.
    pub(super) bits: usize,
    /// The level that stands for zero, of bytes with their highest bit turned.
    pub(super) zero: usize,
    /// Weights of a scale.
    pub(super) group: usize,
    pub(super) has_min: bool,
    pub(super) has_factors: bool,
}

impl WeightsBlueprint {
    /// Weights of a piece.
    pub(super) fn of_piece(&self) -> usize {
        PIECE * 32 / self.bits
    }

    /// Weights whose levels are a word's `place`th, counted from those of the word before: how far
    /// apart the lower and the upper half of a byte are.
    pub(super) fn upper(&self) -> usize {
        BLOCK / 2
    }
}

/// A word with the highest bit of its bytes turned, where they are signed levels.
#[cube]
pub(super) fn unsigned(word: i32, #[comptime] blueprint: WeightsBlueprint) -> u32 {
    let word = u32::reinterpret(word);
    if comptime!(blueprint.bits == 8) { word ^ 0x8080_8080_u32 } else { word }
}

/// The level at bit `shift` of a word.
///
/// Its bits become the last of a float of 2^23, from which that and the level of zero are taken
/// off: exact, and quicker than a conversion.
#[cube]
pub(super) fn level(
    word: u32,
    #[comptime] shift: usize,
    #[comptime] blueprint: WeightsBlueprint,
) -> f32 {
    let mask = comptime!((1_u32 << blueprint.bits) - 1);
    let zero = comptime!(8_388_608.0 + blueprint.zero as f32);
    f32::reinterpret(((word >> comptime!(shift as u32)) & mask) | 0x4b00_0000_u32) - zero
}

/// The scale of a block of a row.
#[cube]
pub(super) fn scale_of<S: Float>(
    scales: &Tensor<S>,
    factors: &Tensor<i32>,
    row: usize,
    block: usize,
    #[comptime] blueprint: WeightsBlueprint,
) -> f32 {
    let group = block / comptime!(blueprint.group / BLOCK);
    let scale = f32::cast_from(scales[row * scales.stride(0) + group]);
    if comptime!(blueprint.has_factors) {
        scale * factor(factors, row, block, 0usize)
    } else {
        scale
    }
}

/// The minimum of a block of a row.
#[cube]
pub(super) fn min_of<S: Float>(
    mins: &Tensor<S>,
    factors: &Tensor<i32>,
    row: usize,
    block: usize,
    #[comptime] blueprint: WeightsBlueprint,
) -> f32 {
    let group = block / comptime!(blueprint.group / BLOCK);
    let min = f32::cast_from(mins[row * mins.stride(0) + group]);
    if comptime!(blueprint.has_factors) { -min * factor(factors, row, block, 2usize) } else { min }
}

/// The factor of a block: a byte of two words, behind `first` others of its group.
#[cube]
fn factor(factors: &Tensor<i32>, row: usize, block: usize, first: usize) -> f32 {
    let place = block % 8;
    let at = row * factors.stride(0) + block / 8 * 4 + first + place / 4;
    f32::cast_from((u32::reinterpret(factors[at]) >> (place % 4 * 8) as u32) & 255)
}
