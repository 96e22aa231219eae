use cubecl::prelude::*;

use crate::attention::INVISIBLE;

/// Units of a cube.
pub(crate) const UNITS: usize = 256;
/// Weights of a cube.
pub(crate) const WEIGHTS: usize = 1024;

/// Puts the parts of the entries of each query together, and turns scores into weights.
///
/// Of the cubes of a query the first writes its output; each turns a block of its scores of the list into weights, and
/// a block of the others.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(crate) fn decode_merge<Q: Float, I: Int>(
    parts: &Tensor<f32>,
    extremes: &Tensor<f32>,
    offsets: &Tensor<I>,
    output: &mut Tensor<Q>,
    log_sum_exp: &mut Tensor<f32>,
    list_weights: &mut Tensor<f32>,
    weights: &mut Tensor<f32>,
    kv_heads: usize,
    entries: usize,
    #[comptime] head_dim: usize,
    #[comptime] listed: bool,
    #[comptime] wanted: bool,
    #[define(Q, I)] _types: [ElemType; 2],
) {
    let unit = UNIT_POS as usize;
    let block = CUBE_POS_X as usize;
    let line = CUBE_POS_Y as usize;
    let query_heads = output.shape(1);
    let new = output.shape(2);
    let row = line % new;
    let head = line / new % query_heads;
    let batch = line / new / query_heads;
    let count = parts.shape(1);

    // The highest score and the sum of all weights: each unit looks at some parts, and then at what all have found.
    let mut found = Shared::<[f32]>::new_slice(comptime!(UNITS));
    let start = line * extremes.stride(0);
    let mut highest = f32::new(INVISIBLE);
    let mut part = unit;
    while part < count {
        highest = highest.max(extremes[start + part * extremes.stride(1)]);
        part += UNITS;
    }
    found[unit] = highest;
    sync_cube();
    let mut half = comptime!(UNITS / 2).runtime();
    while half > 0 {
        if unit < half {
            found[unit] = found[unit].max(found[unit + half]);
        }
        sync_cube();
        half /= 2;
    }
    highest = found[0];
    sync_cube();
    let mut total = f32::new(0.0);
    let mut part = unit;
    while part < count {
        let place = start + part * extremes.stride(1);
        let share = (extremes[place] - highest).exp();
        total += share * extremes[place + extremes.stride(2)];
        part += UNITS;
    }
    found[unit] = total;
    sync_cube();
    let mut half = comptime!(UNITS / 2).runtime();
    while half > 0 {
        if unit < half {
            let other = found[unit + half];
            found[unit] += other;
        }
        sync_cube();
        half /= 2;
    }
    total = found[0];
    sync_cube();
    let seen = highest > INVISIBLE;
    let factor = select(seen, 1.0 / total, 0.0);

    if block == 0 {
        // Some units a channel, each with some of the parts; channels beyond the units in turns.
        let across = comptime!(if head_dim < UNITS { head_dim } else { UNITS });
        let deep = comptime!(UNITS / across);
        let turns = comptime!(head_dim.div_ceil(UNITS));
        #[unroll]
        for turn in 0..turns {
            let channel = unit % across + turn * UNITS;
            let mut sum = f32::new(0.0);
            if unit < comptime!(across * deep) && channel < head_dim {
                let mut part = unit / across;
                while part < count {
                    let place = start + part * extremes.stride(1);
                    let share = (extremes[place] - highest).exp();
                    let place =
                        line * parts.stride(0) + part * parts.stride(1) + channel * parts.stride(2);
                    sum += share * parts[place];
                    part += deep;
                }
            }
            found[unit] = sum;
            sync_cube();
            if unit < across && channel < head_dim {
                let mut sum = f32::new(0.0);
                #[unroll]
                for other in 0..deep {
                    sum += found[other * across + unit];
                }
                let place = batch * output.stride(0)
                    + head * output.stride(1)
                    + row * output.stride(2)
                    + channel * output.stride(3);
                output[place] = Q::cast_from(select(seen, sum * factor, 0.0));
            }
            sync_cube();
        }
        if unit == 0 {
            let place = batch * log_sum_exp.stride(0)
                + head * log_sum_exp.stride(1)
                + row * log_sum_exp.stride(2);
            log_sum_exp[place] = select(seen, highest + total.ln(), -f32::new(INVISIBLE));
        }
    }
    if comptime!(wanted) {
        let place = batch * weights.stride(0) + head * weights.stride(1) + row * weights.stride(2);
        let mut entry = block * WEIGHTS + unit;
        while entry < entries.min((block + 1) * WEIGHTS) {
            let place = place + entry * weights.stride(3);
            weights[place] = (weights[place] - highest).exp() * factor;
            entry += UNITS;
        }
        if comptime!(listed) {
            let group = query_heads / kv_heads;
            let kv_head = batch * kv_heads + head / group;
            let first = usize::cast_from(offsets[kv_head * offsets.stride(0)]);
            let held = usize::cast_from(offsets[(kv_head + 1) * offsets.stride(0)]) - first;
            let mut entry = block * WEIGHTS + unit;
            while entry < held.min((block + 1) * WEIGHTS) {
                let place = (first + entry) * list_weights.stride(0)
                    + head % group * list_weights.stride(1);
                list_weights[place] = (list_weights[place] - highest).exp() * factor;
                entry += UNITS;
            }
        }
    }
}
