//! A rotation that spreads a vector over all its channels; its matrix is never written out.

use std::f64::consts::PI;

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::ops::precise_product;

/// The largest power of two that is one of its two factors.
const FACTOR: usize = 16;

/// The matrix `(A ⊗ B) · diag(s)` of `channels` channels: `A` and `B` are Hadamard matrices over
/// the root of their size, or, where a size is no power of two, matrices of the discrete cosine
/// transform; `s` are signs, the same for every vector.
#[derive(Clone, Debug)]
pub(super) struct Rotation {
    outer: Tensor<2>,
    inner: Tensor<2>,
    /// `[channels]`
    signs: Tensor<1>,
}

impl Rotation {
    pub(super) fn new(channels: usize, device: &Device) -> Self {
        let inner = (1 << channels.trailing_zeros()).min(FACTOR);
        let upload = |numbers: Vec<f32>| {
            let length = numbers.len();
            Tensor::<1>::from_data(TensorData::new(numbers, [length]), (device, DType::F32))
        };
        let square = |size: usize| upload(orthogonal(size)).reshape([size, size]);
        let signs = (0..channels as u64).map(sign).collect();
        Self { outer: square(channels / inner), inner: square(inner), signs: upload(signs) }
    }

    /// Rotates every row, `[rows, channels]`.
    pub(super) fn forth(&self, x: Tensor<2>) -> Tensor<2> {
        let [rows, channels] = x.dims();
        let signs = self.signs.clone().reshape([1, channels]);
        let both = [self.outer.clone().transpose(), self.inner.clone().transpose()];
        product(x * signs, both).reshape([rows, channels])
    }

    /// Undoes the rotation of every row, `[rows, channels]`.
    pub(super) fn back(&self, x: Tensor<2>) -> Tensor<2> {
        let [_, channels] = x.dims();
        let signs = self.signs.clone().reshape([1, channels]);
        product(x, [self.outer.clone(), self.inner.clone()]) * signs
    }
}

/// Multiplies every row by the Kronecker product of two matrices, from the right. A product in
/// lower precision would move numbers to other levels.
fn product(x: Tensor<2>, [outer, inner]: [Tensor<2>; 2]) -> Tensor<2> {
    let [rows, channels] = x.dims();
    let [a, b] = [outer.dims()[0], inner.dims()[0]];
    let by = |x: Tensor<2>, matrix: Tensor<2>| -> Tensor<2> {
        precise_product(x.unsqueeze(), matrix.unsqueeze()).squeeze_dims(&[0, 1])
    };
    let x = by(x.reshape([rows * a, b]), inner);
    let x: Tensor<3> = x.reshape([rows, a, b]).swap_dims(1, 2);
    let x = by(x.reshape([rows * b, a]), outer);
    let x: Tensor<3> = x.reshape([rows, b, a]).swap_dims(1, 2);
    x.reshape([rows, channels])
}

/// A matrix whose transpose is its inverse, row by row.
fn orthogonal(size: usize) -> Vec<f32> {
    let n = size as f64;
    let number = |row: usize, column: usize| {
        if size.is_power_of_two() {
            let sign = if (row & column).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
            return sign / n.sqrt();
        }
        let scale = if row == 0 { (1.0 / n).sqrt() } else { (2.0 / n).sqrt() };
        scale * (PI / n * (column as f64 + 0.5) * row as f64).cos()
    };
    let places = (0..size).flat_map(|row| (0..size).map(move |column| (row, column)));
    places.map(|(row, column)| number(row, column) as f32).collect()
}

/// 1 or −1, by a bit of SplitMix64 at this channel.
fn sign(channel: u64) -> f32 {
    let mut z = (channel + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    if (z ^ (z >> 31)) & 1 == 0 { 1.0 } else { -1.0 }
}
