//! Numbers of a few bits in 32-bit words.

use burn::tensor::{DType, Int, Tensor};

/// Returns the number of words that so many numbers of a row take: of 1, 2, 3, 4 or 8 bits.
pub fn words_of(numbers: usize, bits: u8) -> usize {
    parts(bits).iter().map(|&bits| numbers.div_ceil(a_word(bits))).sum()
}

/// Packs numbers of so many bits, `[pages, rows, numbers]`, into 32-bit words, `[pages, rows,
/// words]`, the first number in the lowest bits. Numbers of 3 bits are stored as a plane of 2 bits
/// followed by a plane of 1 bit, so that no bit is wasted.
pub fn pack_words(levels: Tensor<3, Int>, bits: u8) -> Tensor<3, Int> {
    let levels = levels.cast(DType::I32);
    let mut below = 0;
    let words = parts(bits).iter().map(|&bits| {
        let part = levels.clone().bitwise_right_shift_scalar(below);
        below += i32::from(bits);
        pack_part(part.bitwise_and_scalar(mask(bits)), bits)
    });
    Tensor::cat(words.collect(), 2)
}

/// Unpacks numbers that [`pack_words`] has packed, `[pages, rows, numbers]`.
pub fn unpack_words(words: Tensor<3, Int>, numbers: usize, bits: u8) -> Tensor<3, Int> {
    let (mut first, mut below) = (0, 0);
    let mut levels: Option<Tensor<3, Int>> = None;
    for &bits in parts(bits) {
        let length = numbers.div_ceil(a_word(bits));
        let part = unpack_part(words.clone().narrow(2, first, length), numbers, bits);
        levels = Some(match levels {
            None => part,
            Some(levels) => levels.bitwise_or(part.bitwise_left_shift_scalar(below)),
        });
        first += length;
        below += i32::from(bits);
    }
    levels.unwrap_or(words)
}

fn parts(bits: u8) -> &'static [u8] {
    match bits {
        1 => &[1],
        2 => &[2],
        3 => &[2, 1],
        4 => &[4],
        _ => &[8],
    }
}

fn a_word(bits: u8) -> usize {
    32 / usize::from(bits)
}

fn mask(bits: u8) -> i32 {
    (1 << bits) - 1
}

fn pack_part(mut levels: Tensor<3, Int>, bits: u8) -> Tensor<3, Int> {
    let [pages, rows, numbers] = levels.dims();
    let a_word = a_word(bits);
    let words = numbers.div_ceil(a_word);
    if words * a_word > numbers {
        let rest = [pages, rows, words * a_word - numbers];
        let rest = Tensor::<3, Int>::zeros(rest, (&levels.device(), DType::I32));
        levels = Tensor::cat(vec![levels, rest], 2);
    }
    let levels: Tensor<4, Int> = levels.reshape([pages, rows, words, a_word]);
    let mut packed = levels.clone().narrow(3, 0, 1);
    for place in 1..a_word {
        let shift = (place * usize::from(bits)) as i32;
        let level = levels.clone().narrow(3, place, 1).bitwise_left_shift_scalar(shift);
        packed = packed.bitwise_or(level);
    }
    packed.reshape([pages, rows, words])
}

fn unpack_part(packed: Tensor<3, Int>, numbers: usize, bits: u8) -> Tensor<3, Int> {
    let [pages, rows, words] = packed.dims();
    let a_word = a_word(bits);
    let levels = (0..a_word).map(|place| {
        let shift = (place * usize::from(bits)) as i32;
        packed.clone().bitwise_right_shift_scalar(shift).bitwise_and_scalar(mask(bits))
    });
    // One behind another and turned at once: side by side they would be joined number by number.
    let levels = Tensor::cat(levels.collect(), 0).reshape([a_word, pages * rows * words]);
    levels.transpose().reshape([pages, rows, words * a_word]).narrow(2, 0, numbers)
}
