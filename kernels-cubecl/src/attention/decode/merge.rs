use cubecl::prelude::*;

use crate::common::masked::MASKED;

/// Units of a cube.
pub(crate) const UNITS: usize = 256;
/// Weights of a cube.
pub(crate) const WEIGHTS: usize = 1024;
/// Most parts of a query: one per unit.
pub(crate) const MOST_PARTS: usize = UNITS;
/// Loads of a unit that are under way at a time.
const AHEAD: usize = 4;

/// Merges the parts of each query and turns scores into weights.
///
/// The first cube of a query writes its output; each cube turns a block of its scores into weights.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(crate) fn decode_merge<Q: Float, I: Int>(
    parts: &Tensor<f32>,
    offsets: &Tensor<I>,
    output: &mut Tensor<Q>,
    weights: &mut Tensor<f32>,
    kv_heads: usize,
    entries: usize,
    #[comptime] head_dim: usize,
    #[comptime] listed: bool,
    #[comptime] wanted: bool,
    #[define(Q, I)] _types: [ElemType; 2],
) {
    let unit = UNIT_POS as usize;
    // Lines are the many: devices take more cubes along x.
    let line = CUBE_POS_X as usize;
    let block = CUBE_POS_Y as usize;
    let query_heads = output.shape(1);
    let new = output.shape(2);
    let row = line % new;
    let head = line / new % query_heads;
    let batch = line / new / query_heads;
    let count = parts.shape(1);
    let start = line * parts.stride(0);
    let step = parts.stride(1);
    let next = parts.stride(2);

    // The highest score of all parts, and the sum of all weights relative to it.
    let mut highs = Shared::<[f32]>::new_slice(UNITS);
    let mut found = Shared::<[f32]>::new_slice(UNITS);
    let mut shares = Shared::<[f32]>::new_slice(UNITS);
    let mut own = f32::new(MASKED);
    let mut weight = f32::new(0.0);
    if unit < count {
        weight = parts[start + unit * step + head_dim * next];
        own = parts[start + unit * step + (head_dim + 1) * next];
    }
    highs[unit] = own;
    found[unit] = weight;
    sync_cube();
    let mut half = comptime!(UNITS / 2).runtime();
    while half >= count && half > 0 {
        half /= 2;
    }
    while half > 0 {
        if unit < half {
            let (left, right) = (highs[unit], highs[unit + half]);
            let high = left.max(right);
            let sum = (left - high).exp() * found[unit] + (right - high).exp() * found[unit + half];
            highs[unit] = high;
            found[unit] = sum;
        }
        sync_cube();
        half /= 2;
    }
    let highest = highs[0];
    let total = found[0];
    shares[unit] = (own - highest).exp();
    sync_cube();
    // A query that sees nothing has the sum zero.
    let factor = select(total == 0.0, 0.0, 1.0 / total);

    if block == 0 {
        // Some units per channel, each with some of the parts.
        let across = comptime!(if head_dim < UNITS { head_dim } else { UNITS });
        let deep = comptime!(UNITS / across);
        let channel = unit % across;
        let mut sum = f32::new(0.0);
        if unit < comptime!(across * deep) {
            let mut part = unit / across;
            while part < count {
                #[unroll]
                for ahead in 0..AHEAD {
                    let own = part + ahead * deep;
                    if own < count {
                        sum += shares[own] * parts[start + own * step + channel * next];
                    }
                }
                part += comptime!(AHEAD * deep);
            }
        }
        found[unit] = sum;
        sync_cube();
        if unit < across {
            let mut sum = f32::new(0.0);
            #[unroll]
            for other in 0..deep {
                sum += found[other * across + unit];
            }
            let place = batch * output.stride(0)
                + head * output.stride(1)
                + row * output.stride(2)
                + channel * output.stride(3);
            output[place] = Q::cast_from(sum * factor);
        }
    }
    if comptime!(wanted) {
        let place = batch * weights.stride(0) + head * weights.stride(1) + row * weights.stride(2);
        let columns = weights.shape(3);
        let mut padding = 0usize.runtime();
        if comptime!(listed) {
            let kv_head = batch * kv_heads + head / (query_heads / kv_heads);
            let first = usize::cast_from(offsets[kv_head * offsets.stride(0)]);
            let held = usize::cast_from(offsets[(kv_head + 1) * offsets.stride(0)]) - first;
            padding = (columns - entries) - held.min(columns - entries);
        }
        let mut column = block * WEIGHTS + unit;
        while column < columns.min((block + 1) * WEIGHTS) {
            let place = place + column * weights.stride(3);
            let weight = (weights[place] - highest).exp() * factor;
            // Padding was not written.
            weights[place] = select(column < padding, 0.0, weight);
            column += UNITS;
        }
    }
}
