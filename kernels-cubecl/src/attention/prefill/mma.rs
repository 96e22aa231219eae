use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::{
    pattern::{Pattern, first_key_of, is_whole},
    portable::PrefillBlueprint,
};
use crate::{
    attention::scoring::ScoreArgs,
    common::{
        masked::MASKED,
        nvidia::exp2::exp2,
        tile::mma::{
            CHUNK, Chunk, Pair, SLACK, accumulators, columns_of_b, multiply, pitch, rows_of_a,
            rows_of_b,
        },
    },
};

/// Planes of a cube.
const PLANES: usize = 4;
/// Queries of a plane, in tiles of 16: two share each load of a key or value.
const TALL: usize = 2;
/// Units of a cube.
pub(super) const UNITS: usize = PLANES * 32;
/// Queries of a cube.
pub(super) const QUERIES: usize = PLANES * TALL * 16;
/// Keys in shared memory at a time, a multiple of 16; there are as many again on their way.
pub(super) const KEYS: usize = 32;

/// See [`super::attention`]. Rows of queries, keys and values are contiguous and 16-byte aligned.
#[cube(launch)]
// The outer condition of two is decided when the kernel is expanded.
#[allow(clippy::too_many_arguments, clippy::collapsible_if)]
pub(super) fn attention_mma<E: Float, I: Int>(
    queries: &Tensor<Chunk<E>>,
    keys: &Tensor<Chunk<E>>,
    values: &Tensor<Chunk<E>>,
    query_positions: &Tensor<I>,
    entry_positions: &Tensor<I>,
    pattern: &ComptimeOption<Pattern>,
    output: &mut Tensor<Pair<E>>,
    log_sum_exp: &mut Tensor<f32>,
    scoring: &ScoreArgs,
    #[comptime] blueprint: PrefillBlueprint,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let PrefillBlueprint { head_dim, by_position, sparse, kinds } = blueprint;
    let (tall, block, units, rows) = comptime!((TALL, KEYS, UNITS, QUERIES));
    let pitch = comptime!(pitch(head_dim));
    let chunks = comptime!(head_dim / CHUNK);
    let own = comptime!(tall * 16);
    let steps = comptime!(head_dim / 16);
    let wide = comptime!(head_dim / 8);
    let long = comptime!(block / 8);
    // A lane has two rows of each tile.
    let halves = comptime!(2 * tall);

    let unit = UNIT_POS as usize;
    let plane = unit / 32;
    let lane = UNIT_POS_PLANE as usize;
    let quad = lane % 4;
    let new = queries.shape(2);
    let entries = keys.shape(2);
    let old = entries - new;
    let head = CUBE_POS_X as usize;
    let batch = CUBE_POS_Z as usize;
    let kv_head = head / (queries.shape(1) / keys.shape(1));
    // The last queries of all heads see most: they go first.
    let first = (new.div_ceil(rows) - 1 - CUBE_POS_Y as usize) * rows;

    let query_start = batch * queries.stride(0) + head * queries.stride(1);
    let key_start = batch * keys.stride(0) + kv_head * keys.stride(1);
    let value_start = batch * values.stride(0) + kv_head * values.stride(1);
    let position_start = batch * entry_positions.stride(0) + kv_head * entry_positions.stride(1);

    // Queries, and two stages of keys, values and their positions: one that is multiplied, one on
    // its way.
    let mut query_stage = Shared::<[Chunk<E>]>::new_aligned_slice(comptime!(rows * pitch), 16usize);
    let mut key_stage =
        Shared::<[Chunk<E>]>::new_aligned_slice(comptime!(2 * block * pitch), 16usize);
    let mut value_stage =
        Shared::<[Chunk<E>]>::new_aligned_slice(comptime!(2 * block * pitch), 16usize);
    let mut positions = Shared::<[i32]>::new_slice(comptime!(2 * block));

    let mut index = unit;
    while index < comptime!(rows * chunks) {
        let row = index / chunks;
        let place = (first + row).min(new - 1) * queries.stride(2) / CHUNK + index % chunks;
        query_stage[row * pitch + index % chunks] = queries[query_start / CHUNK + place];
        index += units;
    }

    let mut row_positions = Array::<i32>::new(halves);
    let mut highest = Array::<f32>::new(halves);
    let mut total = Array::<f32>::new(halves);
    let mut offset = Array::<f32>::new(halves);
    #[unroll]
    for half in 0..halves {
        let row = first + plane * own + half * 8 + lane / 4;
        let mut position = i32::cast_from(row + old);
        if comptime!(by_position) {
            let start = batch * query_positions.stride(0);
            let place = start + row.min(new - 1) * query_positions.stride(2);
            position = i32::cast_from(query_positions[place]);
        }
        row_positions[half] = position;
        highest[half] = MASKED;
        total[half] = 0.0;
        offset[half] = 0.0;
    }
    let mut sums = accumulators(comptime!(tall * wide));

    let mut seen = entries;
    if comptime!(!by_position) {
        seen = (first + rows + old).min(entries);
    }
    let mut blocks = seen.div_ceil(block);
    let mut start = 0usize.runtime();
    if comptime!(blueprint.skips()) {
        start = scoring.first_seen(first + old, kinds) / block * block;
        blocks -= start / block;
    }
    let mut list = 0usize.runtime();
    let mut words = 0usize.runtime();
    if comptime!(sparse) {
        let pattern = pattern.as_ref().unwrap();
        list = pattern.list(batch, head, first);
        words = pattern.words(batch, head);
        blocks = pattern.count(list);
        start = first_key_of(pattern.tile(list, 0));
    }

    let per_pass = comptime!((block * chunks).div_ceil(units));
    let whole_passes = comptime!((block * chunks).is_multiple_of(units));
    let mut ahead = Array::<Chunk<E>>::new(per_pass);

    #[unroll]
    for pass in 0..per_pass {
        let index = unit + pass * units;
        let row = (start + index / chunks).min(entries - 1);
        let chunk = index % chunks;
        if whole_passes || index < block * chunks {
            key_stage[(index / chunks) * pitch + chunk] =
                keys[(key_start + row * keys.stride(2)) / CHUNK + chunk];
            value_stage[(index / chunks) * pitch + chunk] =
                values[(value_start + row * values.stride(2)) / CHUNK + chunk];
        }
    }
    if comptime!(by_position) && unit < block {
        let row = (start + unit).min(entries - 1);
        let place = position_start + row * entry_positions.stride(2);
        positions[unit] = i32::cast_from(entry_positions[place]);
    }
    sync_cube();

    let scale = scoring.late_scale(kinds);
    let powers = scale * LOG2_E;
    for number in 0..blocks {
        let mut base = number * block;
        if comptime!(blueprint.skips()) {
            base += start;
        }
        let mut next = base + block;
        let mut bits_set = true.runtime();
        let stage = number % 2 * block;
        let other = block - stage;
        let more = number + 1 < blocks;
        if comptime!(sparse) {
            let pattern = pattern.as_ref().unwrap();
            let tile = pattern.tile(list, number);
            base = first_key_of(tile);
            next = first_key_of(pattern.tile(list, (number + 1).min(blocks - 1)));
            bits_set = is_whole(tile);
        }
        if more {
            #[unroll]
            for pass in 0..per_pass {
                let index = unit + pass * units;
                let row = (next + index / chunks).min(entries - 1);
                ahead[pass] = keys[(key_start + row * keys.stride(2)) / CHUNK + index % chunks];
            }
            if comptime!(by_position) && unit < block {
                let row = (next + unit).min(entries - 1);
                let place = position_start + row * entry_positions.stride(2);
                positions[other + unit] = i32::cast_from(entry_positions[place]);
            }
        }

        let mut scores = accumulators(comptime!(tall * long));
        #[unroll]
        for step in 0..steps {
            let mut a = Sequence::<Array<Pair<E>>>::new();
            #[unroll]
            for tile in 0..tall {
                a.push(rows_of_a::<E>(&query_stage, plane * own + tile * 16, step * 2, pitch));
            }
            #[unroll]
            for pair in 0..comptime!(block / 16) {
                let b = rows_of_b::<E>(&key_stage, stage + pair * 16, step * 2, pitch);
                #[unroll]
                for tile in 0..tall {
                    let place = comptime!(tile * long + pair * 2);
                    multiply::<E>(&a[tile], &b, 0usize, &mut scores[place]);
                    multiply::<E>(&a[tile], &b, 1usize, &mut scores[place + 1]);
                }
            }
        }
        if more {
            #[unroll]
            for pass in 0..per_pass {
                let index = unit + pass * units;
                if whole_passes || index < block * chunks {
                    key_stage[(other + index / chunks) * pitch + index % chunks] = ahead[pass];
                }
                let row = (next + index / chunks).min(entries - 1);
                ahead[pass] =
                    values[(value_start + row * values.stride(2)) / CHUNK + index % chunks];
            }
        }

        let mut whole = base + block <= first + plane * own + old + 1;
        if comptime!(kinds.window) {
            let last = first + plane * own + own - 1 + old;
            whole = whole && !scoring.hides(base as i32 - last as i32, last as i32, kinds);
        }
        if comptime!(by_position || kinds.change_scores()) || !whole {
            #[unroll]
            for tile in 0..long {
                #[unroll]
                for side in 0..2usize {
                    let column = base + tile * 8 + quad * 2 + side;
                    let mut position = i32::cast_from(column);
                    if comptime!(by_position) {
                        position = positions[stage + tile * 8 + quad * 2 + side];
                    }
                    let hidden = position < 0 || column >= entries;
                    #[unroll]
                    for half in 0..halves {
                        let score = &mut scores[half / 2 * long + tile];
                        let mut pair = score[half % 2];
                        let distance = position - row_positions[half];
                        let own = scoring.late_score(pair.extract(side), head, distance, kinds);
                        let mut hidden = hidden || position > row_positions[half];
                        if comptime!(kinds.window) {
                            hidden = hidden || scoring.hides(distance, row_positions[half], kinds);
                        }
                        if comptime!(sparse) {
                            if !bits_set && !hidden {
                                let pattern = pattern.as_ref().unwrap();
                                hidden =
                                    !pattern.sees(words, column, row_positions[half], position);
                            }
                        }
                        pair.insert(side, select(hidden, MASKED, own));
                        score[half % 2] = pair;
                    }
                }
            }
        }

        // Weights are relative to a score of the row that is at most `SLACK` below its highest so
        // far: sums are rescaled only when it has to move, which it rarely does. Where nothing has
        // been seen yet, it is zero.
        let mut high = Array::<f32>::new(halves);
        let mut moves = false;
        #[unroll]
        for half in 0..halves {
            let mut most = scores[half / 2 * long][half % 2].extract(0usize);
            #[unroll]
            for tile in 0..long {
                let pair = scores[half / 2 * long + tile][half % 2];
                most = most.max(pair.extract(0usize).max(pair.extract(1usize)));
            }
            most = most.max(plane_shuffle_xor(most, 1));
            most = most.max(plane_shuffle_xor(most, 2));
            high[half] = most;
            moves = moves || (most - highest[half]) * scale > SLACK;
        }
        if plane_any(moves) {
            #[unroll]
            for half in 0..halves {
                let most = high[half].max(highest[half]);
                let kept = exp2((highest[half] - most) * powers);
                highest[half] = most;
                total[half] *= kept;
                offset[half] = select(most > MASKED, most * powers, 0.0);
                #[unroll]
                for tile in 0..wide {
                    let sum = &mut sums[half / 2 * wide + tile];
                    sum[half % 2] *= Pair::<f32>::new(kept);
                }
            }
        }

        #[unroll]
        for step in 0..comptime!(block / 16) {
            let mut weights = Sequence::<Array<Pair<E>>>::new();
            #[unroll]
            for tile in 0..tall {
                let mut weight = Array::<Pair<E>>::new(4usize);
                #[unroll]
                for part in 0..4usize {
                    let half = comptime!(tile * 2 + part % 2);
                    let score = scores[tile * long + step * 2 + part / 2][part % 2];
                    let left = exp2(fma(score.extract(0usize), powers, -offset[half]));
                    let right = exp2(fma(score.extract(1usize), powers, -offset[half]));
                    total[half] += left + right;
                    let mut pair = Pair::<f32>::empty();
                    pair.insert(0usize, left);
                    pair.insert(1usize, right);
                    weight[part] = Pair::<E>::cast_from(pair);
                }
                weights.push(weight);
            }
            #[unroll]
            for pair in 0..comptime!(head_dim / 16) {
                let b = columns_of_b::<E>(&value_stage, stage + step * 16, pair * 2, pitch);
                #[unroll]
                for tile in 0..tall {
                    let place = comptime!(tile * wide + pair * 2);
                    multiply::<E>(&weights[tile], &b, 0usize, &mut sums[place]);
                    multiply::<E>(&weights[tile], &b, 1usize, &mut sums[place + 1]);
                }
            }
        }

        if more {
            #[unroll]
            for pass in 0..per_pass {
                let index = unit + pass * units;
                if whole_passes || index < block * chunks {
                    value_stage[(other + index / chunks) * pitch + index % chunks] = ahead[pass];
                }
            }
        }
        sync_cube();
    }

    let output_start = batch * output.stride(0) + head * output.stride(1);
    let lse_start = batch * log_sum_exp.stride(0) + head * log_sum_exp.stride(1);
    #[unroll]
    for half in 0..halves {
        let row = first + plane * own + half * 8 + lane / 4;
        let mut sum = total[half];
        sum += plane_shuffle_xor(sum, 1);
        sum += plane_shuffle_xor(sum, 2);
        if row < new {
            let mut blank = row_positions[half] < 0;
            if comptime!(kinds.window) {
                blank = blank || highest[half] <= MASKED;
            }
            let mut high = highest[half] * scale;
            let mut kept = f32::new(1.0);
            if comptime!(kinds.sinks) {
                let (most, all, less) = scoring.with_sink(high, sum, head);
                high = most;
                sum = all;
                kept = less;
            }
            let factor = Pair::<f32>::new(select(blank, 0.0, kept / sum));
            #[unroll]
            for tile in 0..wide {
                let place = (output_start + row * output.stride(2)) / 2 + tile * 4 + quad;
                let pair = sums[half / 2 * wide + tile][half % 2];
                output[place] = Pair::<E>::cast_from(pair * factor);
            }
            if quad == 0 {
                let place = lse_start + row * log_sum_exp.stride(2);
                let log = high + sum.ln();
                log_sum_exp[place] = select(blank, -f32::new(MASKED), log);
            }
        }
    }
}
