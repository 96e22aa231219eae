use briquette_ops::WeightFormat;
use cubecl::prelude::*;

use super::weights::{HALF, PIECE, level, measure, min_of, of_piece, unsigned};

/// Units of a cube.
pub(super) const UNITS: usize = 128;
/// Outputs of a unit.
pub(super) const OUTPUTS: usize = 2;
/// Rows of `x` that a unit has at most.
pub(super) const ROWS: usize = 4;

/// Compile-time parameters of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ProductBlueprint {
    pub(super) format: WeightFormat,
    /// Units that share the weights of an output.
    pub(super) lanes: usize,
    /// Rows of `x` of a unit.
    pub(super) rows: usize,
    pub(super) biased: bool,
}

impl ProductBlueprint {
    /// Outputs of a cube.
    pub(super) fn outputs(&self) -> usize {
        UNITS / self.lanes * OUTPUTS
    }

    fn sums(&self) -> usize {
        OUTPUTS * self.rows
    }
}

/// See [`super::quantized_linear`]. Lanes go along the pieces of `OUTPUTS` rows of weights, each
/// with a few rows of `x`; cubes along y have further rows.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn product<E: Float, S: Float, N: Size>(
    x: &Tensor<Vector<E, N>>,
    words: &Tensor<Vector<i32, N>>,
    scales: &Tensor<S>,
    mins: &Tensor<S>,
    factors: &Tensor<i32>,
    bias: &Tensor<E>,
    output: &mut Tensor<E>,
    #[comptime] blueprint: ProductBlueprint,
    #[define(E, S)] _types: [ElemType; 2],
) {
    let format = comptime!(blueprint.format);
    let lanes = comptime!(blueprint.lanes);
    let (rows, inputs, outputs) = (x.shape(0), x.shape(1), words.shape(0));
    let unit = UNIT_POS as usize;
    let lane = unit % lanes;
    let first = CUBE_POS_X as usize * comptime!(blueprint.outputs()) + unit / lanes * OUTPUTS;
    let first_row = CUBE_POS_Y as usize * blueprint.rows;
    let width = comptime!(of_piece(format));
    let pieces = inputs / width;

    let mut sums = Array::<f32>::new(comptime!(blueprint.sums()));
    #[unroll]
    for sum in 0..blueprint.sums() {
        sums[sum] = f32::new(0.0);
    }
    let mut piece = lane;
    while piece < pieces {
        let block = piece * width / comptime!(format.block());
        #[unroll]
        for output in 0..OUTPUTS {
            let row = (first + output).min(outputs - 1);
            let levels = words[(row * words.stride(0)) / PIECE + piece];
            let scale = measure::<S>(scales, factors, row, block, 0usize, format);
            let min = min_of::<S>(mins, factors, row, block, format);
            #[unroll]
            for own in 0..blueprint.rows {
                let of_x = (first_row + own).min(rows - 1) * x.stride(0) + piece * width;
                let at = of_x / PIECE;
                let mut product = f32::new(0.0);
                let mut total = f32::new(0.0);
                #[unroll]
                for word in 0..PIECE {
                    let levels = unsigned(levels.extract(word), format);
                    let low = Vector::<f32, N>::cast_from(x[at + word]);
                    #[unroll]
                    for place in 0..4usize {
                        let number = low.extract(place);
                        product += number * level(levels, comptime!(8 * place), format);
                        if comptime!(format.has_min()) {
                            total += number;
                        }
                    }
                    if comptime!(format.bits() == 4) {
                        let beyond = comptime!(HALF / PIECE);
                        let high = Vector::<f32, N>::cast_from(x[at + beyond + word]);
                        #[unroll]
                        for place in 0..4usize {
                            let number = high.extract(place);
                            product += number * level(levels, comptime!(8 * place + 4), format);
                            if comptime!(format.has_min()) {
                                total += number;
                            }
                        }
                    }
                }
                let sum = comptime!(output * blueprint.rows + own);
                sums[sum] += scale * product + min * total;
            }
        }
        piece += lanes;
    }

    let mut parts = Shared::<[f32]>::new_slice(comptime!(UNITS * blueprint.sums()));
    #[unroll]
    for sum in 0..blueprint.sums() {
        parts[sum * UNITS + unit] = sums[sum];
    }
    sync_cube();
    let mut half = comptime!(lanes / 2).runtime();
    while half > 0 {
        if lane < half {
            #[unroll]
            for sum in 0..blueprint.sums() {
                let other = parts[sum * UNITS + unit + half];
                parts[sum * UNITS + unit] += other;
            }
        }
        sync_cube();
        half /= 2;
    }
    if lane == 0 {
        #[unroll]
        for column in 0..OUTPUTS {
            #[unroll]
            for own in 0..blueprint.rows {
                let place = first + column;
                if place < outputs && first_row + own < rows {
                    let mut sum = parts[comptime!(column * blueprint.rows + own) * UNITS + unit];
                    if comptime!(blueprint.biased) {
                        sum += f32::cast_from(bias[place * bias.stride(0)]);
                    }
                    let to = (first_row + own) * output.stride(0) + place * output.stride(1);
                    output[to] = E::cast_from(sum);
                }
            }
        }
    }
}

/// See [`super::dequantize`]. A unit has a piece of an output; units beside each other have outputs
/// beside each other.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn expand<E: Float, S: Float, N: Size>(
    words: &Tensor<Vector<i32, N>>,
    scales: &Tensor<S>,
    mins: &Tensor<S>,
    factors: &Tensor<i32>,
    weights: &mut Tensor<E>,
    #[comptime] format: WeightFormat,
    #[define(E, S)] _types: [ElemType; 2],
) {
    let (inputs, outputs) = (weights.shape(0), weights.shape(1));
    let width = comptime!(of_piece(format));
    let row = CUBE_POS_X as usize * UNITS + UNIT_POS as usize;
    let piece = CUBE_POS_Y as usize;
    if row < outputs && piece < inputs / width {
        let block = piece * width / comptime!(format.block());
        let levels = words[(row * words.stride(0)) / PIECE + piece];
        let scale = measure::<S>(scales, factors, row, block, 0usize, format);
        let min = min_of::<S>(mins, factors, row, block, format);
        let next = weights.stride(0);
        #[unroll]
        for word in 0..PIECE {
            let levels = unsigned(levels.extract(word), format);
            let to = (piece * width + comptime!(4 * word)) * next + row * weights.stride(1);
            #[unroll]
            for place in 0..4usize {
                let weight = level(levels, comptime!(8 * place), format) * scale + min;
                weights[to + place * next] = E::cast_from(weight);
                if comptime!(format.bits() == 4) {
                    let weight = level(levels, comptime!(8 * place + 4), format) * scale + min;
                    let beyond = comptime!(place + HALF) * next;
                    weights[to + beyond] = E::cast_from(weight);
                }
            }
        }
    }
}
