use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::portable::ColumnSumsBlueprint;
use crate::{
    attention::scoring::ScoreArgs,
    common::{
        line::write,
        masked::MASKED,
        nvidia::exp2::exp2,
        tile::mma::{CHUNK, Chunk, Pair, multiply, pitch, rows_of_a, rows_of_b, zeros},
    },
};

/// Planes of a cube, of 32 keys each.
const PLANES: usize = 4;
/// Keys of a cube, and its units.
pub(super) const ROWS: usize = PLANES * 32;
/// Queries in shared memory at a time, a multiple of 16; there are as many again on their way.
const QUERIES: usize = 32;

/// Adds up what the four lanes of a quad have of a column, and writes it, if there is that column.
#[cube]
pub(super) fn write_total(
    sums: &mut Tensor<f32>,
    batch: usize,
    head: usize,
    column: usize,
    own: f32,
) {
    let mut total = own;
    total += plane_shuffle_xor(total, 1);
    total += plane_shuffle_xor(total, 2);
    if UNIT_POS_PLANE.is_multiple_of(4) && column < sums.shape(2) {
        write::<f32>(sums, batch, head, column, total);
    }
}

/// See [`super::column_scores`]. Rows of queries and keys are contiguous and 16-byte aligned.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn column_scores_mma<E: Float, I: Int>(
    queries: &Tensor<Chunk<E>>,
    keys: &Tensor<Chunk<E>>,
    log_sum_exp: &Tensor<f32>,
    query_positions: &Tensor<I>,
    entry_positions: &Tensor<I>,
    sums: &mut Tensor<f32>,
    local_sums: &mut Tensor<f32>,
    squares: &mut Tensor<f32>,
    local_queries: usize,
    scoring: &ScoreArgs,
    #[comptime] blueprint: ColumnSumsBlueprint,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let ColumnSumsBlueprint { head_dim, by_position, local, squares: squared, kinds } = blueprint;
    let (rows, units, block) = comptime!((ROWS, ROWS, QUERIES));
    let pitch = comptime!(pitch(head_dim));
    let chunks = comptime!(head_dim / CHUNK);
    let steps = comptime!(head_dim / 16);

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
    // The first keys of all heads are seen by most queries, and go first.
    let first = CUBE_POS_Y as usize * rows;
    let local_start = new - local_queries;

    let query_start = batch * queries.stride(0) + head * queries.stride(1);
    let key_start = batch * keys.stride(0) + kv_head * keys.stride(1);
    let lse_start = batch * log_sum_exp.stride(0) + head * log_sum_exp.stride(1);

    let mut stages =
        Shared::<[Chunk<E>]>::new_aligned_slice(comptime!((2 * block).max(rows) * pitch), 16usize);
    let mut offsets = Shared::<[f32]>::new_slice(comptime!(2 * block));
    let mut positions = Shared::<[i32]>::new_slice(comptime!(2 * block));

    // The keys stay: 32 per plane.
    let mut index = unit;
    while index < comptime!(rows * chunks) {
        let row = (first + index / chunks).min(entries - 1);
        stages[index / chunks * pitch + index % chunks] =
            keys[(key_start + row * keys.stride(2)) / CHUNK + index % chunks];
        index += units;
    }
    sync_cube();
    let mut a = Sequence::<Array<Pair<E>>>::new();
    #[unroll]
    for step in 0..steps {
        a.push(rows_of_a::<E>(&stages, plane * 32, step * 2, pitch));
        a.push(rows_of_a::<E>(&stages, plane * 32 + 16, step * 2, pitch));
    }
    sync_cube();

    // A lane has four keys, eight apart.
    let mine = first + plane * 32 + lane / 4;
    let mut key_positions = Array::<i32>::new(4usize);
    #[unroll]
    for key in 0..4usize {
        let column = mine + key * 8;
        let mut position = i32::cast_from(column);
        if comptime!(by_position) {
            let start = batch * entry_positions.stride(0) + kv_head * entry_positions.stride(1);
            let place = start + column.min(entries - 1) * entry_positions.stride(2);
            position = i32::cast_from(entry_positions[place]);
        }
        key_positions[key] = position;
    }
    let mut weights = Array::<f32>::new(4usize);
    let mut local_weights = Array::<f32>::new(4usize);
    let mut squared_weights = Array::<f32>::new(4usize);
    #[unroll]
    for key in 0..4usize {
        weights[key] = 0.0;
        local_weights[key] = 0.0;
        squared_weights[key] = 0.0;
    }

    let mut start = 0usize.runtime();
    if comptime!(!by_position) && first > old {
        start = (first - old) / block * block;
    }
    let per_pass = comptime!((block * chunks).div_ceil(units));
    let whole_passes = comptime!((block * chunks).is_multiple_of(units));
    let mut ahead = Array::<Chunk<E>>::new(per_pass);
    #[unroll]
    for pass in 0..per_pass {
        let index = unit + pass * units;
        let row = (start + index / chunks).min(new - 1);
        if whole_passes || index < block * chunks {
            stages[index / chunks * pitch + index % chunks] =
                queries[(query_start + row * queries.stride(2)) / CHUNK + index % chunks];
        }
    }
    if unit < block {
        let row = start + unit;
        let mut offset = f32::new(1e30);
        let mut position = i32::cast_from(row + old);
        if row < new {
            offset = log_sum_exp[lse_start + row * log_sum_exp.stride(2)] * LOG2_E;
            if comptime!(by_position) {
                let place = batch * query_positions.stride(0) + row * query_positions.stride(2);
                position = i32::cast_from(query_positions[place]);
            }
        }
        offsets[unit] = offset;
        positions[unit] = position;
    }
    sync_cube();

    let powers = scoring.late_scale(kinds) * LOG2_E;
    let mut end = new;
    if comptime!(blueprint.skips()) {
        end = scoring.end_of_sight(first + rows - 1, kinds).max(old) - old;
        end = end.min(new);
    }
    let blocks = (end - start).div_ceil(block);
    for number in 0..blocks {
        let base = start + number * block;
        let stage = number % 2 * block;
        let other = block - stage;
        let more = number + 1 < blocks;
        if more {
            #[unroll]
            for pass in 0..per_pass {
                let index = unit + pass * units;
                let row = (base + block + index / chunks).min(new - 1);
                ahead[pass] =
                    queries[(query_start + row * queries.stride(2)) / CHUNK + index % chunks];
            }
            if unit < block {
                let row = base + block + unit;
                let mut offset = f32::new(1e30);
                let mut position = i32::cast_from(row + old);
                if row < new {
                    offset = log_sum_exp[lse_start + row * log_sum_exp.stride(2)] * LOG2_E;
                    if comptime!(by_position) {
                        let place =
                            batch * query_positions.stride(0) + row * query_positions.stride(2);
                        position = i32::cast_from(query_positions[place]);
                    }
                }
                offsets[other + unit] = offset;
                positions[other + unit] = position;
            }
        }

        let mut whole = first + rows <= base + old + 1;
        if comptime!(kinds.window) {
            let last = base + block - 1 + old;
            whole = whole && !scoring.hides(first as i32 - last as i32, last as i32, kinds);
        }
        let counted = base + block > local_start;
        #[unroll]
        for pair in 0..comptime!(block / 16) {
            let mut scores = Sequence::<Array<Pair<f32>>>::new();
            #[unroll]
            for _ in 0..4usize {
                scores.push(zeros());
            }
            #[unroll]
            for step in 0..steps {
                let b = rows_of_b::<E>(&stages, stage + pair * 16, step * 2, pitch);
                multiply::<E>(&a[step * 2], &b, 0usize, &mut scores[0]);
                multiply::<E>(&a[step * 2], &b, 1usize, &mut scores[1]);
                multiply::<E>(&a[step * 2 + 1], &b, 0usize, &mut scores[2]);
                multiply::<E>(&a[step * 2 + 1], &b, 1usize, &mut scores[3]);
            }
            if comptime!(by_position || kinds.change_scores()) || !whole {
                #[unroll]
                for own in 0..16usize {
                    let (key, tile, side) = comptime!((own / 4, own / 2 % 2, own % 2));
                    let column = pair * 16 + tile * 8 + quad * 2 + side;
                    let position = positions[stage + column];
                    let distance = key_positions[key] - position;
                    let mut hidden = key_positions[key] < 0 || key_positions[key] > position;
                    if comptime!(kinds.window) {
                        hidden = hidden || scoring.hides(distance, position, kinds);
                    }
                    let score = &mut scores[key / 2 * 2 + tile];
                    let mut two = score[key % 2];
                    let one = scoring.late_score(two.extract(side), head, distance, kinds);
                    two.insert(side, select(hidden, MASKED, one));
                    score[key % 2] = two;
                }
            }
            #[unroll]
            for own in 0..16usize {
                let (key, tile, side) = comptime!((own / 4, own / 2 % 2, own % 2));
                let column = pair * 16 + tile * 8 + quad * 2 + side;
                let score = scores[key / 2 * 2 + tile][key % 2].extract(side);
                let weight = exp2(fma(score, powers, -offsets[stage + column]));
                weights[key] += weight;
                if comptime!(squared) {
                    squared_weights[key] += weight * weight;
                }
                if comptime!(local) && counted {
                    local_weights[key] += select(base + column >= local_start, weight, 0.0);
                }
            }
        }

        if more {
            #[unroll]
            for pass in 0..per_pass {
                let index = unit + pass * units;
                if whole_passes || index < block * chunks {
                    stages[(other + index / chunks) * pitch + index % chunks] = ahead[pass];
                }
            }
        }
        sync_cube();
    }

    #[unroll]
    for key in 0..4usize {
        let column = mine + key * 8;
        write_total(sums, batch, head, column, weights[key]);
        if comptime!(local) {
            write_total(local_sums, batch, head, column, local_weights[key]);
        }
        if comptime!(squared) {
            write_total(squares, batch, head, column, squared_weights[key]);
        }
    }
}
