use std::f32::consts::LOG2_E;

use cubecl::prelude::*;

use super::super::{mma::write_total, portable::ColumnSumsBlueprint};
use crate::common::{
    line::at,
    masked::MASKED,
    nvidia::exp2::exp2,
    tile::wgmma::{
        ALIGNMENT, GROUP, PANEL, ROWS, along_rows, ask, ask_scores, barrier_of, descriptor,
        group_of_unit, pin, wait_for_all_but,
    },
};

/// Blocks of queries in shared memory: one that is multiplied, one on its way.
const STAGES: usize = 2;

/// Groups of a cube, each with 64 keys.
const GROUPS: usize = 4;
/// Keys of a cube.
pub(super) const KEYS: usize = GROUPS * ROWS;
/// Units of a cube.
pub(super) const UNITS: usize = GROUPS * GROUP;
/// Queries of a block.
pub(super) const QUERIES: usize = 128;

/// Sums of a unit's two keys, eight apart, over the queries so far.
#[derive(CubeType)]
struct Sums {
    all: Array<f32>,
    local: Array<f32>,
    squares: Array<f32>,
}

/// Numbers of queries, counted from a unit's first of a block.
#[derive(CubeType)]
struct Bounds {
    /// The first that sees the first key; the other key is seen eight later.
    seeing: i32,
    /// Where queries end.
    end: i32,
    /// The first of the last queries.
    last: i32,
}

/// Turns the scores of a block of queries into weights and adds them up. `powers` is the scale of
/// scores as powers of two; the log-sum-exp of the block's first query of this unit is at `lse`,
/// those of its head end at `end_of_lse`. Of a `plain` block every query sees every key, and none
/// is among the last.
#[cube]
#[allow(clippy::too_many_arguments)]
fn add_up(
    scores: &Array<f32>,
    sums: &mut Sums,
    log_sum_exp: &Tensor<f32>,
    lse: usize,
    end_of_lse: usize,
    bounds: &Bounds,
    powers: f32,
    #[comptime] plain: bool,
    #[comptime] blueprint: ColumnSumsBlueprint,
) {
    #[unroll]
    for place in 0..comptime!(QUERIES / 4) {
        // Of the same query, both keys.
        let query = comptime!(place / 2 * 8 + place % 2);
        let mut of_query = lse + query;
        if comptime!(!plain) {
            of_query = select((query as i32) < bounds.end, of_query, end_of_lse - 1);
        }
        let offset = log_sum_exp[of_query] * LOG2_E;
        #[unroll]
        for half in 0..2usize {
            let mut score = scores[comptime!(place / 2 * 4 + half * 2 + place % 2)];
            if comptime!(!plain) {
                let number = comptime!(query as i32 - half as i32 * 8);
                let hidden = number < bounds.seeing || query as i32 >= bounds.end;
                score = select(hidden, MASKED, score);
            }
            let weight = exp2(fma(score, powers, -offset));
            sums.all[half] += weight;
            if comptime!(blueprint.squares) {
                sums.squares[half] += weight * weight;
            }
            if comptime!(blueprint.local && !plain) {
                sums.local[half] += select(query as i32 >= bounds.last, weight, 0.0);
            }
        }
    }
}

/// See [`super::super::column_scores`], causally: a group has 64 keys. While it adds up weights,
/// the other groups of the processor, of this cube and of others, multiply.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn column_scores_groups<E: Float>(
    queries: &TensorMap<E, Tiled>,
    keys: &TensorMap<E, Tiled>,
    log_sum_exp: &Tensor<f32>,
    sums: &mut Tensor<f32>,
    local_sums: &mut Tensor<f32>,
    squares: &mut Tensor<f32>,
    of_kv_head: usize,
    local_queries: usize,
    scale: f32,
    #[comptime] blueprint: ColumnSumsBlueprint,
    #[define(E)] _type: ElemType,
) {
    let ColumnSumsBlueprint { head_dim, local, squares: squared, .. } = blueprint;
    let (own_keys, block) = comptime!((KEYS, QUERIES));
    let size = comptime!(block * head_dim);
    // Of a stage, as descriptors count.
    let stage_step = comptime!((block * head_dim / 8) as u64);

    let unit = UNIT_POS as usize;
    let new = log_sum_exp.shape(2);
    let entries = sums.shape(2);
    let old = entries - new;
    let head = CUBE_POS_X as usize;
    let batch = CUBE_POS_Z as usize;
    let kv_head = head / of_kv_head;
    // The first keys of all heads are seen by most queries, and go first.
    let first = CUBE_POS_Y as usize * own_keys;
    let local_start = new - local_queries;
    let mut start = 0usize.runtime();
    if first > old {
        start = (first - old) / block * block;
    }
    let blocks = (new - start).div_ceil(block);

    let mut key_stage = Shared::<[E]>::new_aligned_slice(comptime!(own_keys * head_dim), ALIGNMENT);
    let mut query_stages = Shared::<[E]>::new_aligned_slice(comptime!(STAGES * size), ALIGNMENT);
    // Of each stage of queries, and last of keys: whether it has come; and whether it has been
    // read.
    let full = Shared::<[u64]>::new_slice(comptime!(STAGES + 1));
    let empty = Shared::<[u64]>::new_slice(STAGES);
    if unit == 0 {
        #[unroll]
        for stage in 0..STAGES {
            barrier_of(&full[stage]).init_manual(1);
            barrier_of(&empty[stage]).init_manual(comptime!(GROUPS as u32));
        }
        barrier_of(&full[STAGES]).init_manual(1);
    }
    sync_async_proxy_shared();
    sync_cube();

    let asks = unit == 0;
    if asks {
        let of_keys = &full[STAGES];
        let stage = &mut key_stage;
        ask::<E>(of_keys, keys, stage, batch, kv_head, first, 0usize, own_keys, head_dim);
        ask::<E>(&full[0], queries, &mut query_stages, batch, head, start, 0usize, block, head_dim);
    }

    let group = group_of_unit();
    let elected = unit.is_multiple_of(GROUP);
    let lane = UNIT_POS_PLANE as usize;
    let key = first + group * ROWS + unit % GROUP / 32 * 16 + lane / 4;
    let lse = at::<f32>(log_sum_exp, batch, head, 0usize);
    let of_keys = descriptor::<E>(&key_stage[0], comptime!(along_rows(own_keys, head_dim)))
        + group as u64 * comptime!((ROWS * PANEL / 8) as u64);
    let of_queries = descriptor::<E>(&query_stages[0], comptime!(along_rows(block, head_dim)));
    let powers = scale * LOG2_E;

    let mut found = Sums {
        all: Array::<f32>::new(2usize),
        local: Array::<f32>::new(2usize),
        squares: Array::<f32>::new(2usize),
    };
    #[unroll]
    for half in 0..2usize {
        found.all[half] = 0.0;
        found.local[half] = 0.0;
        found.squares[half] = 0.0;
    }
    let mut scores = Array::<f32>::new(comptime!(block / 2));

    barrier_of(&full[STAGES]).wait_parity(0);
    for number in 0..blocks {
        let (stage, phase) = (number % STAGES, (number / STAGES % 2) as u32);
        let next = number + 1;
        if asks && next < blocks {
            let place = next % STAGES;
            if number > 0 {
                let phase = ((number - 1) / STAGES % 2) as u32;
                barrier_of(&empty[place]).wait_parity(phase);
            }
            let (of_next, row) = (&full[place], start + next * block);
            ask::<E>(of_next, queries, &mut query_stages, batch, head, row, place, block, head_dim);
        }
        barrier_of(&full[stage]).wait_parity(phase);
        let tile = of_queries + stage as u64 * stage_step;
        ask_scores::<E>(&mut scores, of_keys, tile, own_keys, block, head_dim);
        wait_for_all_but(0usize);
        pin::<f32>(&scores);
        if elected {
            barrier_of(&empty[stage]).arrive();
        }
        let base = start + number * block;
        let query = base + lane % 4 * 2;
        let (at, end) = (lse + query, lse + new);
        let bounds = Bounds {
            seeing: key as i32 - old as i32 - query as i32,
            end: new as i32 - query as i32,
            last: local_start as i32 - query as i32,
        };
        let all_seen = first + own_keys <= base + old + 1 && base + block <= new;
        if all_seen && base + block <= local_start {
            add_up(&scores, &mut found, log_sum_exp, at, end, &bounds, powers, true, blueprint);
        } else {
            add_up(&scores, &mut found, log_sum_exp, at, end, &bounds, powers, false, blueprint);
        }
    }

    #[unroll]
    for half in 0..2usize {
        let column = key + half * 8;
        write_total(sums, batch, head, column, found.all[half]);
        if comptime!(local) {
            write_total(local_sums, batch, head, column, found.local[half]);
        }
        if comptime!(squared) {
            write_total(squares, batch, head, column, found.squares[half]);
        }
    }
}
