use std::f32::consts::{LN_2, LOG2_E};

use briquette_ops::SparseTiles;
use cubecl::prelude::*;

use super::super::{
    pattern::{Pattern, first_key_of, is_whole},
    portable::PrefillBlueprint,
};
use crate::common::{
    masked::MASKED,
    nvidia::{exp2::exp2, log2::log2, reciprocal::reciprocal},
    tile::{
        mma::Pair,
        wgmma::{
            ALIGNMENT, DEPTH, GROUP, PANEL, ROWS, along_columns, along_rows, ask, ask_part,
            ask_scores, barrier_of, commit, descriptor, expect, fence, group_of_unit,
            multiply_rows, part, pin, wait_for_all_but,
        },
    },
};

/// Blocks of keys, and of values, in shared memory: one that is multiplied, one on its way.
const STAGES: usize = 2;

/// Groups of a cube, each with 64 queries.
const GROUPS: usize = 2;
/// Queries of a cube.
pub(super) const QUERIES: usize = GROUPS * ROWS;
/// Units of a cube. None is set apart to ask for what comes next: registers are given to four
/// planes at a time, and those of two groups need all there are.
pub(super) const UNITS: usize = GROUPS * GROUP;
/// Keys of a block.
const KEYS: usize = 128;
// As lists of tiles are made.
const _: () = assert!(QUERIES == SparseTiles::QUERIES);
const _: () = assert!(KEYS.is_multiple_of(SparseTiles::KEYS));

/// Keys that lie one after another in memory.
pub(super) const fn keys_of_tile(blueprint: PrefillBlueprint) -> usize {
    if blueprint.sparse { SparseTiles::KEYS } else { KEYS }
}

/// Tiles of a block.
const fn tiles_of_block(blueprint: PrefillBlueprint) -> usize {
    KEYS / keys_of_tile(blueprint)
}

/// The tiles of a block: of a list, as [`SparseTiles::lists`] has them, or −1 behind its end; or
/// else the number of the block.
#[cube]
fn tiles_of(
    pattern: &ComptimeOption<Pattern>,
    list: usize,
    count: usize,
    block: usize,
    #[comptime] blueprint: PrefillBlueprint,
) -> Array<i32> {
    let many = comptime!(tiles_of_block(blueprint));
    let mut tiles = Array::<i32>::new(many);
    #[unroll]
    for tile in 0..many {
        let number = block * many + tile;
        tiles[tile] = number as i32;
        if comptime!(blueprint.sparse) {
            let pattern = pattern.as_ref().unwrap();
            tiles[tile] = -1;
            if number < count {
                tiles[tile] = pattern.tile(list, number);
            }
        }
    }
    tiles
}

/// The first key of a tile; 0 of one behind the end of a list.
#[cube]
fn first_key(tile: i32, #[comptime] blueprint: PrefillBlueprint) -> usize {
    if comptime!(blueprint.sparse) { first_key_of(tile.max(0)) } else { tile as usize * KEYS }
}

/// Asks for a block of keys or of values.
#[cube]
#[allow(clippy::too_many_arguments)]
fn ask_block<E: Float>(
    full: &u64,
    from: &TensorMap<E, Tiled>,
    stages: &mut Shared<[E]>,
    batch: usize,
    head: usize,
    tiles: &Array<i32>,
    stage: usize,
    #[comptime] blueprint: PrefillBlueprint,
) {
    let (head_dim, long) = comptime!((blueprint.head_dim, keys_of_tile(blueprint)));
    expect(full, KEYS, head_dim);
    #[unroll]
    for tile in 0..comptime!(tiles_of_block(blueprint)) {
        let row = first_key(tiles[tile], blueprint);
        let at = comptime!(tile * long);
        ask_part::<E>(full, from, stages, batch, head, row, stage, at, long, KEYS, head_dim);
    }
}

/// Asks for the sums of a block's values, by weights.
#[cube]
fn ask_values<E: Float>(
    sums: &mut Array<f32>,
    weights: &Sequence<Array<E>>,
    values: u64,
    #[comptime] head_dim: usize,
) {
    let layout = comptime!(along_columns(KEYS, head_dim));
    pin::<f32>(&*sums);
    #[unroll]
    for depth in 0..comptime!(KEYS / DEPTH) {
        pin::<E>(&weights[depth]);
    }
    fence();
    #[unroll]
    for depth in 0..comptime!(KEYS / DEPTH) {
        let tile = values + comptime!(part(layout, depth));
        multiply_rows::<E>(sums, &weights[depth], tile, head_dim);
    }
    commit();
}

/// Numbers of a unit's two rows.
#[derive(CubeType)]
struct Rows {
    /// The position of each query. Causally it is the last entry that the query sees.
    positions: Array<i32>,
    /// The highest score so far.
    highest: Array<f32>,
    /// The sum of this unit's weights, relative to the highest score.
    total: Array<f32>,
    /// The factor of sums since the highest score has moved.
    kept: Array<f32>,
}

/// Hides scores of entries behind the position of a row, of the block from `base` on.
#[cube]
fn hide_later(scores: &mut Array<f32>, rows: &Rows, base: usize, #[comptime] block: usize) {
    let first = (base + UNIT_POS_PLANE as usize % 4 * 2) as i32;
    #[unroll]
    for place in 0..comptime!(block / 2) {
        let column = first + comptime!((place / 4 * 8 + place % 2) as i32);
        let hidden = column > rows.positions[comptime!(place / 2 % 2)];
        scores[place] = select(hidden, MASKED, scores[place]);
    }
}

/// An entry of a block, as a unit finds it.
#[derive(CubeType)]
struct Entry {
    place: usize,
    /// −1 if it is padding, or there is none.
    position: i32,
}

/// The entry of a unit's score of this number, in a tile from `first` on. `start` is where
/// positions of the head begin.
#[cube]
fn entry_of<I: Int>(
    positions: &Tensor<I>,
    start: usize,
    first: usize,
    #[comptime] number: usize,
) -> Entry {
    let entries = positions.shape(2);
    let place = first + number + UNIT_POS_PLANE as usize % 4 * 2;
    let of_place = start + place.min(entries - 1) * positions.stride(2);
    let position = i32::cast_from(positions[of_place]);
    Entry { place, position: select(place < entries, position, -1) }
}

/// Hides scores of entries that are padding, at a position behind that of a row, or not in the
/// pattern.
#[cube]
#[allow(clippy::too_many_arguments)]
fn hide_by_position<I: Int>(
    scores: &mut Array<f32>,
    rows: &Rows,
    tiles: &Array<i32>,
    positions: &Tensor<I>,
    start: usize,
    pattern: &ComptimeOption<Pattern>,
    words: usize,
    #[comptime] blueprint: PrefillBlueprint,
) {
    let long = comptime!(keys_of_tile(blueprint));
    #[unroll]
    for nth in 0..comptime!(tiles_of_block(blueprint)) {
        let tile = tiles[nth];
        let first = first_key(tile, blueprint);
        // Scores of a unit in a tile: of two entries of eight, both rows.
        let own = comptime!(nth * long / 2);
        #[unroll]
        for column in 0..comptime!(long / 4) {
            let number = comptime!(column / 2 * 8 + column % 2);
            let entry = entry_of::<I>(positions, start, first, number);
            let nothing = entry.position < 0 || tile < 0;
            #[unroll]
            for half in 0..2usize {
                let score = comptime!(own + column / 2 * 4 + half * 2 + column % 2);
                let hidden = nothing || entry.position > rows.positions[half];
                scores[score] = select(hidden, MASKED, scores[score]);
            }
        }
        if comptime!(blueprint.sparse) {
            if !is_whole(tile) {
                let pattern = pattern.as_ref().unwrap();
                #[unroll]
                for column in 0..comptime!(long / 4) {
                    let number = comptime!(column / 2 * 8 + column % 2);
                    let entry = entry_of::<I>(positions, start, first, number);
                    #[unroll]
                    for half in 0..2usize {
                        let score = comptime!(own + column / 2 * 4 + half * 2 + column % 2);
                        let row = rows.positions[half];
                        if scores[score] > MASKED
                            && !pattern.sees(words, entry.place, row, entry.position)
                        {
                            scores[score] = MASKED;
                        }
                    }
                }
            }
        }
    }
}

/// Hides scores of entries that a row does not see, of the block from `base` on. Causally none are
/// hidden before `seen_by_all`.
#[cube]
#[allow(clippy::too_many_arguments)]
fn hide<I: Int>(
    scores: &mut Array<f32>,
    rows: &Rows,
    tiles: &Array<i32>,
    positions: &Tensor<I>,
    start: usize,
    pattern: &ComptimeOption<Pattern>,
    words: usize,
    base: usize,
    seen_by_all: usize,
    #[comptime] blueprint: PrefillBlueprint,
) {
    if comptime!(blueprint.by_position) {
        hide_by_position::<I>(scores, rows, tiles, positions, start, pattern, words, blueprint);
    } else if base + KEYS > seen_by_all {
        hide_later(scores, rows, base, KEYS);
    }
}

/// Turns scores into weights. `scale` is that of scores as powers of two.
#[cube]
fn weigh(scores: &mut Array<f32>, rows: &mut Rows, scale: f32, #[comptime] block: usize) {
    let long = comptime!(block / 8);
    #[unroll]
    for half in 0..2usize {
        let mut most = scores[half * 2];
        #[unroll]
        for tile in 0..long {
            most = most.max(scores[tile * 4 + half * 2].max(scores[tile * 4 + half * 2 + 1]));
        }
        most = most.max(plane_shuffle_xor(most, 1));
        most = most.max(plane_shuffle_xor(most, 2));
        most = most.max(rows.highest[half]);
        let kept = exp2((rows.highest[half] - most) * scale);
        rows.highest[half] = most;
        rows.kept[half] = kept;
        let offset = select(most > MASKED, most * scale, 0.0);
        let mut sum = rows.total[half] * kept;
        #[unroll]
        for tile in 0..long {
            #[unroll]
            for side in 0..2usize {
                let place = comptime!(tile * 4 + half * 2 + side);
                let weight = exp2(fma(scores[place], scale, -offset));
                scores[place] = weight;
                sum += weight;
            }
        }
        rows.total[half] = sum;
    }
}

/// Makes sums relative to the highest score so far.
#[cube]
fn rescale(sums: &mut Array<f32>, rows: &Rows, #[comptime] head_dim: usize) {
    #[unroll]
    for place in 0..comptime!(head_dim / 2) {
        sums[place] *= rows.kept[comptime!(place / 2 % 2)];
    }
}

/// Weights as the product with values takes them.
#[cube]
fn round<E: Float>(
    weights: &mut Sequence<Array<E>>,
    scores: &Array<f32>,
    #[comptime] block: usize,
) {
    #[unroll]
    for depth in 0..comptime!(block / DEPTH) {
        let rounded = &mut weights[depth];
        #[unroll]
        for nth in 0..8usize {
            rounded[nth] = E::cast_from(scores[depth * 8 + nth]);
        }
    }
}

/// See [`super::super::attention`]: a group has the scores of the next block multiplied, and the
/// values of this one, and turns those scores into weights while its values are.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn attention_groups<E: Float, I: Int>(
    queries: &TensorMap<E, Tiled>,
    keys: &TensorMap<E, Tiled>,
    values: &TensorMap<E, Tiled>,
    query_positions: &Tensor<I>,
    entry_positions: &Tensor<I>,
    pattern: &ComptimeOption<Pattern>,
    output: &mut Tensor<Pair<E>>,
    log_sum_exp: &mut Tensor<f32>,
    entries: usize,
    of_kv_head: usize,
    scale: f32,
    #[comptime] blueprint: PrefillBlueprint,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let PrefillBlueprint { head_dim, by_position, sparse, .. } = blueprint;
    let (own_rows, block) = comptime!((QUERIES, KEYS));
    let query_layout = comptime!(along_rows(own_rows, head_dim));
    let key_layout = comptime!(along_rows(block, head_dim));
    let value_layout = comptime!(along_columns(block, head_dim));
    // Of a stage, as descriptors count.
    let stage_step = comptime!((block * head_dim / 8) as u64);
    let wide = comptime!(head_dim / 8);

    let unit = UNIT_POS as usize;
    let new = output.shape(2);
    let old = entries - new;
    let head = CUBE_POS_X as usize;
    let batch = CUBE_POS_Z as usize;
    let kv_head = head / of_kv_head;
    // The last queries of all heads see most: they go first.
    let first = (new.div_ceil(own_rows) - 1 - CUBE_POS_Y as usize) * own_rows;
    let mut blocks = (first + own_rows + old).min(entries).div_ceil(block);
    let mut position_start = 0usize.runtime();
    if comptime!(by_position) {
        blocks = entries.div_ceil(block);
        position_start = batch * entry_positions.stride(0) + kv_head * entry_positions.stride(1);
    }
    let mut list = 0usize.runtime();
    let mut count = 0usize.runtime();
    let mut words = 0usize.runtime();
    if comptime!(sparse) {
        let pattern = pattern.as_ref().unwrap();
        list = pattern.list(batch, head, first);
        words = pattern.words(batch, head);
        count = pattern.count(list);
        blocks = count.div_ceil(comptime!(tiles_of_block(blueprint))).max(1);
    }

    let mut query_stage =
        Shared::<[E]>::new_aligned_slice(comptime!(own_rows * head_dim), ALIGNMENT);
    let mut key_stages =
        Shared::<[E]>::new_aligned_slice(comptime!(STAGES * block * head_dim), ALIGNMENT);
    let mut value_stages =
        Shared::<[E]>::new_aligned_slice(comptime!(STAGES * block * head_dim), ALIGNMENT);
    // Of each stage of keys, then of values, and last of queries: whether it has come; and whether
    // it has been read.
    let full = Shared::<[u64]>::new_slice(comptime!(2 * STAGES + 1));
    let empty = Shared::<[u64]>::new_slice(comptime!(2 * STAGES));
    if unit == 0 {
        #[unroll]
        for stage in 0..comptime!(2 * STAGES) {
            barrier_of(&full[stage]).init_manual(1);
            barrier_of(&empty[stage]).init_manual(comptime!(GROUPS as u32));
        }
        barrier_of(&full[comptime!(2 * STAGES)]).init_manual(1);
    }
    sync_async_proxy_shared();
    sync_cube();

    // Tiles of this block, and of the next.
    let mut tiles = tiles_of(pattern, list, count, 0usize, blueprint);
    let mut next_tiles = tiles_of(pattern, list, count, 1usize, blueprint);
    let asks = unit == 0;
    if asks {
        let of_queries = &full[comptime!(2 * STAGES)];
        let stage = &mut query_stage;
        ask::<E>(of_queries, queries, stage, batch, head, first, 0usize, own_rows, head_dim);
        let (stages, of_keys) = (&mut key_stages, &full[0]);
        ask_block::<E>(of_keys, keys, stages, batch, kv_head, &tiles, 0usize, blueprint);
        if blocks > 1 {
            let (stages, of_keys) = (&mut key_stages, &full[1]);
            ask_block::<E>(of_keys, keys, stages, batch, kv_head, &next_tiles, 1usize, blueprint);
        }
        let (stages, of_values) = (&mut value_stages, &full[STAGES]);
        ask_block::<E>(of_values, values, stages, batch, kv_head, &tiles, 0usize, blueprint);
    }

    let group = group_of_unit();
    let elected = unit.is_multiple_of(GROUP);
    let lane = UNIT_POS_PLANE as usize;
    // A unit has two rows, eight apart.
    let row = first + group * ROWS + unit % GROUP / 32 * 16 + lane / 4;
    let of_queries = descriptor::<E>(&query_stage[0], query_layout)
        + group as u64 * comptime!((ROWS * PANEL / 8) as u64);
    let of_keys = descriptor::<E>(&key_stages[0], key_layout);
    let of_values = descriptor::<E>(&value_stages[0], value_layout);

    let mut rows = Rows {
        positions: Array::<i32>::new(2usize),
        highest: Array::<f32>::new(2usize),
        total: Array::<f32>::new(2usize),
        kept: Array::<f32>::new(2usize),
    };
    #[unroll]
    for half in 0..2usize {
        let row = row + half * 8;
        let mut position = (row + old) as i32;
        if comptime!(by_position) {
            let start = batch * query_positions.stride(0);
            let place = start + row.min(new - 1) * query_positions.stride(2);
            position = i32::cast_from(query_positions[place]);
        }
        rows.positions[half] = position;
        rows.highest[half] = MASKED;
        rows.total[half] = 0.0;
    }
    let mut sums = Array::<f32>::new(comptime!(head_dim / 2));
    #[unroll]
    for place in 0..comptime!(head_dim / 2) {
        sums[place] = 0.0;
    }
    let mut scores = Array::<f32>::new(comptime!(block / 2));
    let mut weights = Sequence::<Array<E>>::new();
    #[unroll]
    for _ in 0..comptime!(block / DEPTH) {
        weights.push(Array::<E>::new(8usize));
    }
    let powers = scale * LOG2_E;
    // Entries that all queries of the group see, causally.
    let seen_by_all = first + group * ROWS + old + 1;

    barrier_of(&full[comptime!(2 * STAGES)]).wait_parity(0);
    barrier_of(&full[0]).wait_parity(0);
    ask_scores::<E>(&mut scores, of_queries, of_keys, own_rows, block, head_dim);
    wait_for_all_but(0usize);
    pin::<f32>(&scores);
    if elected {
        barrier_of(&empty[0]).arrive();
    }
    hide::<I>(
        &mut scores,
        &rows,
        &tiles,
        entry_positions,
        position_start,
        pattern,
        words,
        0usize,
        seen_by_all,
        blueprint,
    );
    weigh(&mut scores, &mut rows, powers, block);
    round::<E>(&mut weights, &scores, block);

    for number in 1..blocks {
        // Scores of this block, values of the one before.
        let (stage, before) = (number % STAGES, (number - 1) % STAGES);
        let phase = (number / STAGES % 2) as u32;
        let before_phase = ((number - 1) / STAGES % 2) as u32;
        tiles = next_tiles;
        next_tiles = tiles_of(pattern, list, count, number + 1, blueprint);
        barrier_of(&full[stage]).wait_parity(phase);
        let tile = of_keys + stage as u64 * stage_step;
        ask_scores::<E>(&mut scores, of_queries, tile, own_rows, block, head_dim);
        rescale(&mut sums, &rows, head_dim);
        barrier_of(&full[STAGES + before]).wait_parity(before_phase);
        ask_values::<E>(&mut sums, &weights, of_values + before as u64 * stage_step, head_dim);
        if asks && number + 1 < blocks {
            // Where the keys were whose scores are weights now.
            barrier_of(&empty[before]).wait_parity(before_phase);
            let (stages, of_keys) = (&mut key_stages, &full[before]);
            ask_block::<E>(of_keys, keys, stages, batch, kv_head, &next_tiles, before, blueprint);
        }
        if asks {
            // Where the values were before those that are multiplied.
            if number > 1 {
                let phase = ((number - 2) / STAGES % 2) as u32;
                barrier_of(&empty[STAGES + stage]).wait_parity(phase);
            }
            let (stages, of_values) = (&mut value_stages, &full[STAGES + stage]);
            ask_block::<E>(of_values, values, stages, batch, kv_head, &tiles, stage, blueprint);
        }
        wait_for_all_but(1usize);
        pin::<f32>(&scores);
        if elected {
            barrier_of(&empty[stage]).arrive();
        }
        hide::<I>(
            &mut scores,
            &rows,
            &tiles,
            entry_positions,
            position_start,
            pattern,
            words,
            number * block,
            seen_by_all,
            blueprint,
        );
        weigh(&mut scores, &mut rows, powers, block);
        // They are there, as above, but ptxas moves no weight behind this; without it, it would
        // wait for the product of values before all of them.
        barrier_of(&full[STAGES + before]).wait_parity(before_phase);
        wait_for_all_but(0usize);
        pin::<f32>(&sums);
        if elected {
            barrier_of(&empty[STAGES + before]).arrive();
        }
        round::<E>(&mut weights, &scores, block);
    }
    rescale(&mut sums, &rows, head_dim);
    let last = blocks - 1;
    barrier_of(&full[STAGES + last % STAGES]).wait_parity((last / STAGES % 2) as u32);
    let of_last = of_values + (last % STAGES) as u64 * stage_step;
    ask_values::<E>(&mut sums, &weights, of_last, head_dim);
    wait_for_all_but(0usize);
    pin::<f32>(&sums);

    let output_start = batch * output.stride(0) + head * output.stride(1);
    let lse_start = batch * log_sum_exp.stride(0) + head * log_sum_exp.stride(1);
    #[unroll]
    for half in 0..2usize {
        let row = row + half * 8;
        let mut sum = rows.total[half];
        sum += plane_shuffle_xor(sum, 1);
        sum += plane_shuffle_xor(sum, 2);
        if row < new {
            // Of a query that is padding.
            let blank = rows.positions[half] < 0;
            let factor = select(blank, 0.0, reciprocal(sum));
            #[unroll]
            for tile in 0..wide {
                let mut pair = Pair::<f32>::empty();
                pair.insert(0usize, sums[tile * 4 + half * 2] * factor);
                pair.insert(1usize, sums[tile * 4 + half * 2 + 1] * factor);
                let place = (output_start + row * output.stride(2)) / 2 + tile * 4 + lane % 4;
                output[place] = Pair::<E>::cast_from(pair);
            }
            if lane.is_multiple_of(4) {
                let place = lse_start + row * log_sum_exp.stride(2);
                let log = rows.highest[half] * scale + log2(sum) * LN_2;
                log_sum_exp[place] = select(blank, -f32::new(MASKED as f64), log);
            }
        }
    }
}
