use cubecl::prelude::*;

use crate::{
    attention::scoring::ScoreArgs,
    common::{line::StridedSlice, masked::MASKED},
};

/// Units of a cube.
pub(crate) const UNITS: usize = 256;
/// Weights of a cube.
pub(crate) const WEIGHTS: usize = 1024;
/// Numbers of a part: weighted sums of values, behind them the sum of weights and the maximum of
/// scores that they are relative to, and two more, so that the next part begins on 16 bytes where
/// `head_dim` is a multiple of 4.
pub(crate) const fn part_width(head_dim: usize) -> usize {
    head_dim + 4
}

/// Most parts of a query: one per unit.
pub(crate) const MOST_PARTS: usize = UNITS;
/// Loads of a unit that are under way at a time: with 256 units and a `head_dim` of 128, all of 32
/// parts.
const AHEAD: usize = 16;

/// Begins the loads of a channel of the parts from `first` on, each `step` parts behind the one
/// before. Behind the last part, that one: a load that waits for a branch is not under way.
#[cube]
fn load_parts(
    parts: &[f32],
    channel: &StridedSlice,
    count: usize,
    first: usize,
    #[comptime] step: usize,
) -> Array<f32> {
    let mut own = Array::<f32>::new(AHEAD);
    #[unroll]
    for ahead in 0..AHEAD {
        own[ahead] = parts[channel.at((first + ahead * step).min(count - 1))];
    }
    own
}

/// Merges the parts of each query, and its sink if there is one, and turns scores into weights.
///
/// The first cube of a query writes its output; each cube turns a block of its scores into weights.
/// Parts and output are contiguous.
#[cube(launch)]
pub(crate) fn decode_merge<Q: Float, I: Int>(
    parts: &[f32],
    offsets: &Tensor<I>,
    output: &mut [Q],
    weights: &mut Tensor<f32>,
    count: usize,
    query_heads: usize,
    kv_heads: usize,
    new: usize,
    entries: usize,
    scoring: &ScoreArgs,
    #[comptime] head_dim: usize,
    #[comptime] sinks: bool,
    #[comptime] listed: bool,
    #[comptime] wanted: bool,
    #[define(Q, I)] _types: [ElemType; 2],
) {
    let unit = UNIT_POS as usize;
    // Lines are the many: devices take more cubes along x.
    let line = CUBE_POS_X as usize;
    let block = CUBE_POS_Y as usize;
    let step = comptime!(part_width(head_dim));
    let start = line * count * step;

    // Some units per channel, each with some of the parts, which are on their way while their
    // shares are found.
    let across = comptime!(if head_dim < UNITS { head_dim } else { UNITS });
    let deep = comptime!(UNITS / across);
    let channel = unit % across;
    let of_channel = StridedSlice { start: start + channel, stride: step.runtime() };
    let mut loaded = Array::<f32>::new(AHEAD);
    if comptime!(!wanted) || block == 0 {
        loaded = load_parts(parts, &of_channel, count, unit / across, deep);
    }

    // The highest score of all parts, and the sum of all weights relative to it.
    let mut highs = Shared::<[f32]>::new_slice(UNITS);
    let mut found = Shared::<[f32]>::new_slice(UNITS);
    let mut shares = Shared::<[f32]>::new_slice(UNITS);
    let mut own = f32::new(MASKED);
    let mut weight = f32::new(0.0);
    if unit < count {
        weight = parts[start + unit * step + head_dim];
        own = parts[start + unit * step + head_dim + 1];
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
    let head = line / new % query_heads;
    let (highest, total) = if comptime!(sinks) {
        let (highest, total, _) = scoring.with_sink(highs[0], found[0], head);
        (highest, total)
    } else {
        (highs[0], found[0])
    };
    shares[unit] = (own - highest).exp();
    sync_cube();
    // A query that sees nothing has the sum zero.
    let factor = select(total == 0.0, 0.0, 1.0 / total);

    if block == 0 {
        let mut sum = f32::new(0.0);
        if unit < comptime!(across * deep) {
            let mut part = unit / across;
            while part < count {
                #[unroll]
                for ahead in 0..AHEAD {
                    let own = part + ahead * deep;
                    let share = shares[own.min(comptime!(UNITS - 1))];
                    sum += select(own < count, share * loaded[ahead], 0.0);
                }
                part += comptime!(AHEAD * deep);
                if part < count {
                    loaded = load_parts(parts, &of_channel, count, part, deep);
                }
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
            output[line * head_dim + channel] = Q::cast_from(sum * factor);
        }
    }
    if comptime!(wanted) {
        let row = line % new;
        let batch = line / new / query_heads;
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
