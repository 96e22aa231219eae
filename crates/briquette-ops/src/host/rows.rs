//! Rows of numbers.

use pulp::{Arch, Simd};
use rayon::prelude::*;

use super::exp;

/// The product of two rows.
#[inline(always)]
pub(crate) fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let ((a, rest_a), (b, rest_b)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
    // Two sums, so that a product need not wait for the one before.
    let mut sums = [simd.splat_f32s(0.0); 2];
    let ((a, last_a), (b, last_b)) = (a.as_chunks::<2>(), b.as_chunks::<2>());
    for (a, b) in a.iter().zip(b) {
        sums[0] = simd.mul_add_e_f32s(a[0], b[0], sums[0]);
        sums[1] = simd.mul_add_e_f32s(a[1], b[1], sums[1]);
    }
    for (a, b) in last_a.iter().zip(last_b) {
        sums[0] = simd.mul_add_e_f32s(*a, *b, sums[0]);
    }
    let rest: f32 = rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum();
    simd.reduce_sum_f32s(simd.add_f32s(sums[0], sums[1])) + rest
}

/// Adds a row times `weight`.
#[inline(always)]
pub(crate) fn add<S: Simd>(simd: S, sum: &mut [f32], weight: f32, row: &[f32]) {
    let ((sum, rest), (row, rest_of_row)) = (S::as_mut_simd_f32s(sum), S::as_simd_f32s(row));
    let weights = simd.splat_f32s(weight);
    for (sum, row) in sum.iter_mut().zip(row) {
        *sum = simd.mul_add_e_f32s(weights, *row, *sum);
    }
    for (sum, number) in rest.iter_mut().zip(rest_of_row) {
        *sum += weight * number;
    }
}

/// Vectors whose sums stay in registers.
const BLOCK: usize = 4;

/// Adds rows that are as wide as `sum`, one after another in `rows`, each times its factor.
#[inline(always)]
pub(crate) fn add_all<S: Simd>(simd: S, sum: &mut [f32], factors: &[f32], rows: &[f32]) {
    let width = sum.len();
    let lanes = S::F32_LANES * BLOCK;
    let end = width / lanes * lanes;
    let (blocks, rest) = sum.split_at_mut(end);
    for (number, block) in blocks.chunks_exact_mut(lanes).enumerate() {
        let (block, _) = S::as_mut_simd_f32s(block);
        let mut own: [S::f32s; BLOCK] = std::array::from_fn(|vector| block[vector]);
        for (factor, row) in factors.iter().zip(rows.chunks_exact(width)) {
            let factors = simd.splat_f32s(*factor);
            let (row, _) = S::as_simd_f32s(&row[number * lanes..][..lanes]);
            for (own, row) in own.iter_mut().zip(row) {
                *own = simd.mul_add_e_f32s(factors, *row, *own);
            }
        }
        block.copy_from_slice(&own);
    }
    if !rest.is_empty() {
        for (factor, row) in factors.iter().zip(rows.chunks_exact(width)) {
            add(simd, rest, *factor, &row[end..]);
        }
    }
}

/// Turns scores into `e` to the power of their difference to `highest`, and adds these up.
#[inline(always)]
pub(crate) fn exponentials<S: Simd>(simd: S, scores: &mut [f32], highest: f32) -> f32 {
    scores.iter_mut().for_each(|score| *score = exp(*score - highest));
    let (vectors, rest) = S::as_simd_f32s(scores);
    let total = vectors.iter().fold(simd.splat_f32s(0.0), |sum, own| simd.add_f32s(sum, *own));
    simd.reduce_sum_f32s(total) + rest.iter().sum::<f32>()
}

/// The highest score; −∞ of none.
#[inline(always)]
pub(crate) fn highest<S: Simd>(simd: S, scores: &[f32]) -> f32 {
    let (vectors, rest) = S::as_simd_f32s(scores);
    let least = simd.splat_f32s(f32::NEG_INFINITY);
    let most = vectors.iter().fold(least, |most, own| simd.max_f32s(most, *own));
    rest.iter().copied().fold(simd.reduce_max_f32s(most), f32::max)
}

/// Turns scores into weights that add up to one, with that of a sink if there is one; of none it
/// makes none.
#[inline(always)]
pub(crate) fn softmax<S: Simd>(simd: S, scores: &mut [f32], sink: Option<f32>) {
    let highest = highest(simd, scores).max(sink.unwrap_or(f32::NEG_INFINITY));
    let of_sink = sink.map_or(0.0, |sink| exp(sink - highest));
    let total = exponentials(simd, scores, highest) + of_sink;
    scores.iter_mut().for_each(|weight| *weight /= total);
}

/// Turns a row by angles, a pair of its halves each.
#[inline(always)]
pub(crate) fn turn(cosines: &[f32], sines: &[f32], row: &[f32], to: &mut [f32]) {
    let half = row.len() / 2;
    let ((low, high), (to_low, to_high)) = (row.split_at(half), to.split_at_mut(half));
    for pair in 0..half {
        to_low[pair] = low[pair] * cosines[pair] - high[pair] * sines[pair];
        to_high[pair] = high[pair] * cosines[pair] + low[pair] * sines[pair];
    }
}

/// Numbers from which on rows are written on all cores.
const MANY: usize = 1 << 16;

/// Rows of `width` numbers that `of_row` writes, each by its number, in vector code.
pub(crate) fn write(
    rows: usize,
    width: usize,
    of_row: impl Fn(usize, &mut [f32]) + Sync,
) -> Vec<f32> {
    let arch = Arch::new();
    let mut written = vec![0.0; rows * width];
    let of_row = |(row, to): (usize, &mut [f32])| arch.dispatch(|| of_row(row, to));
    let width = width.max(1);
    match written.len() < MANY {
        true => written.chunks_mut(width).enumerate().for_each(of_row),
        false => written.par_chunks_mut(width).enumerate().for_each(of_row),
    }
    written
}
