//! Rows of levels, multiplied and expanded.

use pulp::{Simd, WithSimd};

use super::super::format::{BLOCK, WeightFormat};
use crate::host::rows::dot;

/// Some rows of weights.
#[derive(Clone, Copy)]
pub(super) struct RowsOf<'a> {
    pub(super) format: WeightFormat,
    pub(super) inputs: usize,
    /// Levels of all rows.
    pub(super) bytes: &'a [u8],
    /// Scale of each block.
    pub(super) scales: &'a [f32],
    /// Minimum of each block.
    pub(super) mins: Option<&'a [f32]>,
}

/// The levels of a block of `N`.
trait Levels<const N: usize> {
    /// Bytes of a block.
    const BYTES: usize;

    fn of(bytes: &[u8]) -> [f32; N];
}

/// Signed bytes.
struct Bytes;

impl<const N: usize> Levels<N> for Bytes {
    const BYTES: usize = N;

    #[inline(always)]
    fn of(bytes: &[u8]) -> [f32; N] {
        let mut levels = [0.0; N];
        for place in 0..N {
            levels[place] = i32::from(bytes[place].cast_signed()) as f32;
        }
        levels
    }
}

/// Halves of bytes, less the level that stands for zero.
struct Halves<const ZERO: i32>;

impl<const ZERO: i32> Levels<BLOCK> for Halves<ZERO> {
    const BYTES: usize = BLOCK / 2;

    #[inline(always)]
    fn of(bytes: &[u8]) -> [f32; BLOCK] {
        let mut levels = [0.0; BLOCK];
        for place in 0..BLOCK / 2 {
            levels[place] = (i32::from(bytes[place] & 15) - ZERO) as f32;
            levels[place + BLOCK / 2] = (i32::from(bytes[place] >> 4) - ZERO) as f32;
        }
        levels
    }
}

/// Multiplies rows of `x` with rows of weights.
pub(super) struct Multiply<'a> {
    pub(super) weights: RowsOf<'a>,
    /// `[rows, inputs]`
    pub(super) x: &'a [f32],
    /// Sums of the blocks of `x`, where there are minima.
    pub(super) sums: &'a [f32],
    pub(super) rows: usize,
    /// `[outputs, rows]`
    pub(super) products: &'a mut [f32],
}

impl WithSimd for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let format = self.weights.format;
        match (format.bits(), format.block(), format.zero()) {
            (8, 16, _) => self.with_levels::<S, Bytes, 16>(simd),
            (8, ..) => self.with_levels::<S, Bytes, BLOCK>(simd),
            (.., 0) => self.with_levels::<S, Halves<0>, BLOCK>(simd),
            (..) => self.with_levels::<S, Halves<8>, BLOCK>(simd),
        }
    }
}

impl Multiply<'_> {
    #[inline(always)]
    fn with_levels<S: Simd, L: Levels<N>, const N: usize>(self, simd: S) {
        let Self { weights, x, sums, rows, products } = self;
        let blocks = weights.inputs / N;
        for (output, products) in products.chunks_exact_mut(rows).enumerate() {
            let bytes = &weights.bytes[output * blocks * L::BYTES..][..blocks * L::BYTES];
            let scales = &weights.scales[output * blocks..][..blocks];
            for (row, product) in products.iter_mut().enumerate() {
                let x = &x[row * weights.inputs..][..weights.inputs];
                *product = dot_levels::<S, L, N>(simd, bytes, scales, x);
            }
            if let Some(mins) = weights.mins {
                let mins = &mins[output * blocks..][..blocks];
                for (row, product) in products.iter_mut().enumerate() {
                    *product += dot(simd, mins, &sums[row * blocks..][..blocks]);
                }
            }
        }
    }
}

/// A row of weights, without minima, times a row of `x`.
#[inline(always)]
fn dot_levels<S: Simd, L: Levels<N>, const N: usize>(
    simd: S,
    bytes: &[u8],
    scales: &[f32],
    x: &[f32],
) -> f32 {
    let (x, _) = x.as_chunks::<N>();
    let mut sum = simd.splat_f32s(0.0);
    for block in 0..scales.len().min(x.len()) {
        let levels = L::of(&bytes[block * L::BYTES..][..L::BYTES]);
        let ((levels, _), (x, _)) = (S::as_simd_f32s(&levels), S::as_simd_f32s(&x[block]));
        let mut of_block = simd.mul_f32s(levels[0], x[0]);
        for lanes in 1..levels.len() {
            of_block = simd.mul_add_e_f32s(levels[lanes], x[lanes], of_block);
        }
        sum = simd.mul_add_e_f32s(simd.splat_f32s(scales[block]), of_block, sum);
    }
    simd.reduce_sum_f32s(sum)
}

/// Expands rows of weights.
pub(super) struct Expand<'a> {
    pub(super) weights: RowsOf<'a>,
    /// `[outputs, inputs]`
    pub(super) to: &'a mut [f32],
}

impl WithSimd for Expand<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let format = self.weights.format;
        match (format.bits(), format.block(), format.zero()) {
            (8, 16, _) => self.with_levels::<Bytes, 16>(),
            (8, ..) => self.with_levels::<Bytes, BLOCK>(),
            (.., 0) => self.with_levels::<Halves<0>, BLOCK>(),
            (..) => self.with_levels::<Halves<8>, BLOCK>(),
        }
    }
}

impl Expand<'_> {
    #[inline(always)]
    fn with_levels<L: Levels<N>, const N: usize>(self) {
        let Self { weights, to } = self;
        let (to, _) = to.as_chunks_mut::<N>();
        for (block, to) in to.iter_mut().enumerate() {
            let levels = L::of(&weights.bytes[block * L::BYTES..][..L::BYTES]);
            let scale = weights.scales[block];
            let min = weights.mins.map_or(0.0, |mins| mins[block]);
            for place in 0..N {
                to[place] = levels[place] * scale + min;
            }
        }
    }
}
