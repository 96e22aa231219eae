use briquette_ops::WeightFormat;
use cubecl::prelude::*;

/// Weights whose levels lie together.
pub(super) const BLOCK: usize = 32;
/// Words that are loaded at once.
pub(super) const PIECE: usize = 4;

/// How far apart the weights are whose levels are the two halves of a byte.
pub(super) const HALF: usize = BLOCK / 2;

/// Weights of a piece.
pub(super) fn of_piece(format: WeightFormat) -> usize {
    PIECE * 32 / format.bits()
}

/// A word with the highest bit of its bytes turned, where they are signed levels.
#[cube]
pub(super) fn unsigned(word: i32, #[comptime] format: WeightFormat) -> u32 {
    let word = u32::reinterpret(word);
    if comptime!(format.bits() == 8) { word ^ 0x8080_8080_u32 } else { word }
}

/// The level at bit `shift` of a word.
///
/// Its bits become the last of a float of 2^23, from which that and the level of zero are taken
/// off: exact, and quicker than a conversion.
#[cube]
pub(super) fn level(word: u32, #[comptime] shift: usize, #[comptime] format: WeightFormat) -> f32 {
    let mask = comptime!((1_u32 << format.bits()) - 1);
    // Of signed bytes whose highest bit is turned it is in the middle.
    let middle = comptime!(if format.bits() == 8 { 128 } else { 0 });
    let zero = comptime!(8_388_608.0 + (format.zero() + middle) as f32);
    f32::reinterpret(((word >> comptime!(shift as u32)) & mask) | 0x4b00_0000_u32) - zero
}

/// The minimum of a block of a row, 0 where there is none.
#[cube]
pub(super) fn min_of<S: Float>(
    mins: &Tensor<S>,
    factors: &Tensor<i32>,
    row: usize,
    block: usize,
    #[comptime] format: WeightFormat,
) -> f32 {
    if comptime!(!format.has_min()) {
        f32::new(0.0)
    } else if comptime!(format.has_factors()) {
        let behind = comptime!(format.factor_words_of_group() / 2);
        -measure(mins, factors, row, block, behind, format)
    } else {
        measure(mins, factors, row, block, 0usize, format)
    }
}

/// The scale or the minimum of a block's group, times its factor where there are some: a byte
/// behind the `first` words of its group, which minima have before them.
#[cube]
pub(super) fn measure<S: Float>(
    groups: &Tensor<S>,
    factors: &Tensor<i32>,
    row: usize,
    block: usize,
    first: usize,
    #[comptime] format: WeightFormat,
) -> f32 {
    let blocks = comptime!(format.group() / format.block());
    let group = block / blocks;
    let number = f32::cast_from(groups[row * groups.stride(0) + group]);
    if comptime!(format.has_factors()) {
        let place = block % blocks;
        let words = comptime!(format.factor_words_of_group());
        let at = row * factors.stride(0) + group * words + first + place / 4;
        let byte = (u32::reinterpret(factors[at]) >> (place % 4 * 8) as u32) & 255;
        if comptime!(format.has_min()) {
            number * f32::cast_from(byte)
        } else {
            // Signed, with the highest bit turned.
            number * (f32::cast_from(byte ^ 128) - 128.0)
        }
    } else {
        number
    }
}
