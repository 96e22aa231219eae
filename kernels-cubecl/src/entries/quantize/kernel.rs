use briquette_ops::e4m3::{BIAS, HIGHEST, LARGEST, LOWEST, MANTISSA};
use cubecl::prelude::*;

use crate::common::rounding::{Precision, exponent_of, power_of_two, rounded};

/// Units of a cube.
pub(super) const UNITS: usize = 64;

/// See [`super::quantize`]. Units are numbered through the groups of all rows of all pages.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn quantize<E: Float, D: Float>(
    x: &Tensor<E>,
    words: &mut Tensor<i32>,
    scale: &mut Tensor<D>,
    min: &mut Tensor<D>,
    groups: usize,
    group: usize,
    width: usize,
    #[comptime] bits: u32,
    #[comptime] precision: Precision,
    #[define(E, D)] _types: [ElemType; 2],
) {
    let place = CUBE_POS * UNITS + UNIT_POS as usize;
    let (pages, rows) = (x.shape(0), x.shape(1));
    if place < pages * rows * groups {
        // Groups beside each other are of rows beside each other, which lie so where rows are
        // channels.
        let row = place % rows;
        let of_row = place / rows % groups;
        let page = place / rows / groups;
        let next = x.stride(2);
        let start = page * x.stride(0) + row * x.stride(1) + of_row * group * next;
        let mut low = f32::cast_from(x[start]);
        let mut high = low;
        for number in 1..group {
            let own = f32::cast_from(x[start + number * next]);
            low = low.min(own);
            high = high.max(own);
        }
        let top = comptime!(((1u32 << bits) - 1) as f32);
        // What is held is what the numbers are measured by.
        let held_scale = rounded((high - low) / top, precision);
        let low = rounded(low, precision);
        let measure = row * groups + of_row;
        let to_scale = page * scale.stride(0) + measure * scale.stride(1);
        scale[to_scale] = D::cast_from(held_scale);
        let to_min = page * min.stride(0) + measure * min.stride(1);
        min[to_min] = D::cast_from(low);
        let step = select(held_scale == f32::new(0.0), f32::new(1.0), held_scale);

        let a_word = comptime!((32 / bits) as usize);
        for word in 0..group.div_ceil(a_word) {
            let mut packed = 0u32;
            #[unroll]
            for part in 0..a_word {
                let number = word * a_word + part;
                if number < group {
                    let own = f32::cast_from(x[start + number * next]);
                    let level = ((own - low) / step).round().clamp(f32::new(0.0), top);
                    packed |= u32::cast_from(level) << comptime!(part as u32 * bits);
                }
            }
            let of_words = row * width + of_row * group / a_word + word;
            let to = page * words.stride(0) + of_words * words.stride(1);
            words[to] = i32::reinterpret(packed);
        }
    }
}

/// See [`super::quantize_fp8`]. Units are numbered through the rows of all pages.
#[cube(launch)]
pub(super) fn quantize_fp8<E: Float, D: Float>(
    x: &Tensor<E>,
    words: &mut Tensor<i32>,
    scale: &mut Tensor<D>,
    #[comptime] precision: Precision,
    #[define(E, D)] _types: [ElemType; 2],
) {
    let place = CUBE_POS * UNITS + UNIT_POS as usize;
    let (pages, rows, channels) = (x.shape(0), x.shape(1), x.shape(2));
    if place < pages * rows {
        let (page, row) = (place / rows, place % rows);
        let next = x.stride(2);
        let start = page * x.stride(0) + row * x.stride(1);
        let mut largest = f32::new(0.0);
        for channel in 0..channels {
            largest = largest.max(f32::cast_from(x[start + channel * next]).abs());
        }
        // What is held is what the numbers are measured by.
        let held = rounded(largest / LARGEST, precision);
        let to = page * scale.stride(0) + row * scale.stride(1);
        scale[to] = D::cast_from(held);
        let step = select(held == f32::new(0.0), f32::new(1.0), held);

        let width = channels.div_ceil(4);
        for word in 0..width {
            let mut packed = 0u32;
            #[unroll]
            for part in 0..4usize {
                let channel = word * 4 + part;
                if channel < channels {
                    let own = f32::cast_from(x[start + channel * next]) / step;
                    packed |= byte_of(own) << comptime!(part as u32 * 8);
                }
            }
            let to = page * words.stride(0) + (row * width + word) * words.stride(1);
            words[to] = i32::reinterpret(packed);
        }
    }
}

/// The byte of E4M3 that is nearest to a number, halves to even.
#[cube]
fn byte_of(number: f32) -> u32 {
    let size = number.abs().min(f32::new(LARGEST));
    let exponent = exponent_of(size).clamp(LOWEST, HIGHEST);
    // A mantissa that is rounded up to a power of two is carried over into the exponent.
    let mantissa = u32::cast_from((size * power_of_two(MANTISSA - exponent)).round());
    let above = u32::cast_from(exponent + BIAS - 1) << comptime!(MANTISSA as u32);
    let sign = select(number < f32::new(0.0), 128u32, 0u32);
    (above + mantissa).min(126) + sign
}
