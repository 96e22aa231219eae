use cubecl::prelude::*;

use super::softmax::LOWEST;

/// Units of a cube.
pub(super) const UNITS: usize = 128;

/// Columns of weights a cube.
pub(super) const COLUMNS: usize = 1024;

/// Puts splits together, always in the same order. Weights hold scores.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn merge<Q: Float>(
    partial: &Tensor<f32>,
    extremes: &Tensor<f32>,
    output: &mut Tensor<Q>,
    weights: &mut Tensor<f32>,
    query_heads: usize,
    splits: usize,
    columns: usize,
    #[comptime] head_dim: usize,
    #[comptime] wanted: bool,
    #[define(Q)] _type: ElemType,
) {
    let unit = UNIT_POS as usize;
    let head = CUBE_POS_X as usize;
    let block = CUBE_POS_Y as usize;
    let batch = head / query_heads;
    let query_head = head % query_heads;

    let mut highest = f32::new(LOWEST);
    for split in 0..splits {
        let place = split * extremes.stride(0) + head * extremes.stride(1);
        highest = highest.max(extremes[place]);
    }
    let mut sum = f32::new(0.0);
    for split in 0..splits {
        let place = split * extremes.stride(0) + head * extremes.stride(1);
        let part = extremes[place + extremes.stride(2)];
        sum += (extremes[place] - highest).exp() * part;
    }
    // A head that sees nothing has the sum zero.
    let factor = select(sum == 0.0, f32::new(0.0), f32::new(1.0) / sum);

    if block == 0 {
        let start = batch * output.stride(0) + query_head * output.stride(1);
        let mut channel = unit;
        while channel < head_dim {
            let mut total = f32::new(0.0);
            for split in 0..splits {
                let place = split * extremes.stride(0) + head * extremes.stride(1);
                let row = split * partial.stride(0) + head * partial.stride(1);
                let share = (extremes[place] - highest).exp();
                total += share * partial[row + channel * partial.stride(2)];
            }
            let place = start + channel * output.stride(3);
            output[place] = Q::cast_from(total * factor);
            channel += UNITS;
        }
    }
    if wanted {
        let start = batch * weights.stride(0) + query_head * weights.stride(1);
        let end = ((block + 1) * COLUMNS).min(columns);
        let mut column = block * COLUMNS + unit;
        while column < end {
            let place = start + column * weights.stride(2);
            weights[place] = (weights[place] - highest).exp() * factor;
            column += UNITS;
        }
    }
}
