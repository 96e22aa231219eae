use cubecl::prelude::*;

use super::entries::{Entries, EntryKinds, head_entries, is_free};
use crate::{
    attention::scoring::{ScoreArgs, ScoreKinds},
    common::masked::MASKED,
};

/// Units of a cube.
pub(crate) const UNITS: usize = 256;
/// Query rows of a cube: their products with a key stay in registers.
pub(crate) const ROWS: usize = 8;
/// Entries that a cube scores before it looks at their values.
pub(crate) const CHUNK: usize = 128;
/// Numbers of shared memory for partial products: 16 KiB, what every device has.
const PARTIAL_NUMBERS: usize = 4096;
/// Units of a row that look for its highest score among those others have found.
const DEPTH: usize = 8;
/// Loads of a unit that are under way at a time.
const AHEAD: usize = 4;

/// Compile-time parameters of the portable decode kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DecodeBlueprint {
    pub(crate) head_dim: usize,
    /// Numbers of one load: they divide head_dim.
    pub(crate) width: usize,
    /// Queries of a cube: they share a kv head.
    pub(crate) rows: usize,
    pub(crate) kinds: EntryKinds,
    pub(crate) scoring: ScoreKinds,
}

impl DecodeBlueprint {
    /// Number of units that read one row together.
    pub(crate) const fn lanes(&self) -> usize {
        self.head_dim / self.width
    }

    /// Number of rows that are read at a time.
    const fn stripes(&self) -> usize {
        UNITS / self.lanes()
    }

    /// Number of entries between two barriers: as many as partial products fit, and a multiple of
    /// the stripes where possible.
    const fn tile(&self) -> usize {
        let most = PARTIAL_NUMBERS / (self.rows * self.lanes()) - 1;
        let most = if most > CHUNK { CHUNK } else { most };
        let mut tile = self.stripes() * AHEAD;
        while tile > most {
            tile /= 2;
        }
        if tile == 0 { 1 } else { tile }
    }
}

/// Loads the vector `lane` of an entry's key or value.
#[cube]
fn load<K: Float, N: Size>(
    list: &Tensor<Vector<K, N>>,
    rows: &Tensor<Vector<K, N>>,
    list_start: usize,
    start: usize,
    in_list: bool,
    entry: usize,
    lane: usize,
    #[comptime] blueprint: DecodeBlueprint,
) -> Vector<K, N> {
    let width = comptime!(blueprint.width);
    if comptime!(blueprint.kinds.listed) {
        if in_list {
            list[(list_start + entry) * list.stride(0) / width + lane]
        } else {
            rows[(start + entry * rows.stride(2)) / width + lane]
        }
    } else {
        rows[(start + entry * rows.stride(2)) / width + lane]
    }
}

/// Part of the entries of [`super::dense`] that one cube has.
#[cube(launch)]
pub(crate) fn decode_part<Q: Float, K: Float, I: Int, N: Size>(
    queries: &Tensor<Q>,
    of: &Entries<Vector<K, N>, I>,
    parts: &mut Tensor<f32>,
    weights: &mut Tensor<f32>,
    entries: usize,
    share: usize,
    scoring: &ScoreArgs,
    #[comptime] blueprint: DecodeBlueprint,
    #[define(Q, K, I)] _types: [ElemType; 3],
) {
    let DecodeBlueprint { head_dim, width, rows, kinds, scoring: score_kinds } = blueprint;
    let EntryKinds { listed, by_position, weights: wanted, .. } = kinds;
    let lanes = comptime!(blueprint.lanes());
    let stripes = comptime!(blueprint.stripes());
    let tile = comptime!(blueprint.tile());
    let pitch = comptime!(tile + 1);
    let passes = comptime!(tile.div_ceil(stripes));
    let each = comptime!(UNITS / rows);

    let unit = UNIT_POS as usize;
    let lane = unit % lanes;
    let stripe = unit / lanes;
    let query_heads = queries.shape(1);
    let new = queries.shape(2);
    let keys = &of.rows.keys;
    let values = &of.rows.values;
    let kv_heads = keys.shape(1);
    let group = query_heads / kv_heads;
    let blocks = (group * new).div_ceil(rows);
    let kv_head = CUBE_POS_Y as usize / blocks;
    let first_row = CUBE_POS_Y as usize % blocks * rows;
    let batch = CUBE_POS_Z as usize;
    let part = CUBE_POS_X as usize;

    let key_start = batch * keys.stride(0) + kv_head * keys.stride(1);
    let value_start = batch * values.stride(0) + kv_head * values.stride(1);
    let kv = batch * kv_heads + kv_head;
    let own_entries =
        head_entries::<Vector<K, N>, I>(of, &*weights, kv, entries, share, CHUNK, 1usize, kinds);
    let (list_start, held) = (own_entries.list_start, own_entries.held);

    let mut partial =
        Shared::<[f32]>::new_slice(comptime!(if rows * lanes * pitch > UNITS * width {
            rows * lanes * pitch
        } else {
            UNITS * width
        }));
    let mut scores = Shared::<[f32]>::new_slice(comptime!(CHUNK * rows));
    let mut reduced = Shared::<[f32]>::new_slice(comptime!(UNITS));
    let mut best = Shared::<[f32]>::new_slice(comptime!(rows * DEPTH));

    // The channels of each query that this unit multiplies.
    let mut query = Array::<f32>::new(comptime!(rows * width));
    let mut sums = Array::<f32>::new(comptime!(rows * width));
    let mut highest = Array::<f32>::new(rows);
    let mut total = Array::<f32>::new(rows);
    #[unroll]
    for row in 0..rows {
        let own = (first_row + row).min(group * new - 1);
        let place = batch * queries.stride(0)
            + (kv_head * group + own / new) * queries.stride(1)
            + own % new * queries.stride(2);
        #[unroll]
        for channel in 0..width {
            let step = (lane * width + channel) * queries.stride(3);
            query[row * width + channel] = f32::cast_from(queries[place + step]) * scoring.scale;
            sums[row * width + channel] = 0.0;
        }
        highest[row] = MASKED;
        total[row] = 0.0;
    }

    let mut chunk = own_entries.first;
    while chunk < own_entries.end {
        let in_list = comptime!(listed) && chunk < own_entries.list_tiles;
        let base = select(in_list, chunk, chunk - own_entries.list_tiles) * CHUNK;
        let end = select(in_list, held, own_entries.tail);
        let count = (end - base).min(CHUNK);

        // Scores of the chunk, a tile between two barriers.
        let mut first = 0usize.runtime();
        while first < count {
            if stripe < stripes {
                #[unroll]
                for pass in 0..passes {
                    let place = stripe + pass * stripes;
                    let entry = base + first + place;
                    let entry = entry.min(end - 1);
                    let loaded = load::<K, N>(
                        &of.list.keys,
                        keys,
                        list_start,
                        key_start,
                        in_list,
                        entry,
                        lane,
                        blueprint,
                    );
                    let key = Vector::<f32, N>::cast_from(loaded);
                    #[unroll]
                    for row in 0..rows {
                        let mut sum = f32::new(0.0);
                        #[unroll]
                        for channel in 0..width {
                            sum = fma(query[row * width + channel], key.extract(channel), sum);
                        }
                        if comptime!(passes * stripes == tile) || place < tile {
                            partial[(row * lanes + lane) * pitch + place] = sum;
                        }
                    }
                }
            }
            sync_cube();
            let mut index = unit;
            while index < comptime!(tile * rows) {
                let place = index % tile;
                let row = index / tile;
                let mut score = f32::new(0.0);
                #[unroll]
                for other in 0..lanes {
                    score += partial[(row * lanes + other) * pitch + place];
                }
                let entry = base + first + place;
                if first + place < count {
                    let own = first_row + row;
                    let entry_positions = &of.entry_positions;
                    let query_positions = &of.query_positions;
                    let mut hidden = false.runtime();
                    let mut own_position = 0i32.runtime();
                    // The entry's position less the query's.
                    let mut distance = 0i32.runtime();
                    if comptime!(by_position && listed) {
                        hidden = in_list
                            && is_free::<I>(
                                entry_positions,
                                batch,
                                kv_head,
                                held - entry.min(held),
                            );
                    } else if comptime!(by_position) {
                        let place = batch * entry_positions.stride(0)
                            + kv_head * entry_positions.stride(1)
                            + entry * entry_positions.stride(2);
                        let position = entry_positions[place];
                        let place = batch * query_positions.stride(0)
                            + own.min(group * new - 1) % new * query_positions.stride(2);
                        let of_query = query_positions[place];
                        hidden = position < I::new(0) || position > of_query;
                        if comptime!(score_kinds.reads_distances()) {
                            own_position = i32::cast_from(of_query);
                            distance = i32::cast_from(position) - own_position;
                        }
                    } else if comptime!(!listed) {
                        let behind = own_entries.tail + own % new;
                        hidden = entry + new > behind;
                        if comptime!(score_kinds.reads_distances()) {
                            own_position = i32::cast_from(behind) - i32::cast_from(new);
                            distance = i32::cast_from(entry) - own_position;
                        }
                    }
                    let head = kv_head * group + own.min(group * new - 1) / new;
                    score = scoring.score(score, head, distance, score_kinds);
                    if comptime!(score_kinds.window) {
                        hidden = hidden || scoring.hides(distance, own_position, score_kinds);
                    }
                    if comptime!(by_position || !listed) {
                        score = select(hidden, MASKED, score);
                    }
                    scores[(first + place) * rows + row] = score;
                    if comptime!(wanted) && own < group * new {
                        let of_list = own_entries.list_columns;
                        let before = select(in_list, of_list - held.min(of_list), of_list);
                        let place = batch * weights.stride(0)
                            + (kv_head * group + own / new) * weights.stride(1)
                            + own % new * weights.stride(2)
                            + (before + entry) * weights.stride(3);
                        weights[place] = score;
                    }
                }
                index += UNITS;
            }
            sync_cube();
            first += tile;
        }

        // The highest score of each row, and weights relative to it.
        let row = unit / each;
        if row < rows {
            let mut high = f32::new(MASKED);
            let mut place = unit % each;
            while place < count {
                high = high.max(scores[place * rows + row]);
                place += each;
            }
            reduced[unit] = high;
        }
        sync_cube();
        let few = comptime!(each.div_ceil(DEPTH));
        if unit < comptime!(rows * DEPTH) {
            let row = unit / DEPTH;
            let mut high = f32::new(MASKED);
            #[unroll]
            for other in 0..few {
                let place = unit % DEPTH + other * DEPTH;
                if place < each {
                    high = high.max(reduced[row * each + place]);
                }
            }
            best[unit] = high;
        }
        sync_cube();
        let mut kept = Array::<f32>::new(rows);
        #[unroll]
        for row in 0..rows {
            let mut high = highest[row];
            #[unroll]
            for other in 0..DEPTH {
                high = high.max(best[row * DEPTH + other]);
            }
            kept[row] = (highest[row] - high).exp();
            highest[row] = high;
        }
        let mut index = unit;
        while index < count * rows {
            let mut high = highest[0];
            #[unroll]
            for row in 1..rows {
                high = select(index % rows == row, highest[row], high);
            }
            let score = scores[index];
            scores[index] = select(score > MASKED, (score - high).exp(), 0.0);
            index += UNITS;
        }
        #[unroll]
        for row in 0..rows {
            total[row] *= kept[row];
            #[unroll]
            for channel in 0..width {
                sums[row * width + channel] *= kept[row];
            }
        }
        sync_cube();

        // Values, as many stripes at a time.
        if stripe < stripes {
            let mut place = stripe;
            while place < count {
                #[unroll]
                for ahead in 0..AHEAD {
                    let own = place + ahead * stripes;
                    let entry = (base + own).min(end - 1);
                    let loaded = load::<K, N>(
                        &of.list.values,
                        values,
                        list_start,
                        value_start,
                        in_list,
                        entry,
                        lane,
                        blueprint,
                    );
                    let value = Vector::<f32, N>::cast_from(loaded);
                    if own < count {
                        #[unroll]
                        for row in 0..rows {
                            let weight = scores[own * rows + row];
                            total[row] += weight;
                            #[unroll]
                            for channel in 0..width {
                                sums[row * width + channel] = fma(
                                    weight,
                                    value.extract(channel),
                                    sums[row * width + channel],
                                );
                            }
                        }
                    }
                }
                place += comptime!(AHEAD * stripes);
            }
        }
        sync_cube();
        chunk += 1;
    }

    // The sums of all stripes, in order.
    #[unroll]
    for row in 0..rows {
        if stripe < stripes {
            #[unroll]
            for channel in 0..width {
                partial[(stripe * width + channel) * lanes + lane] = sums[row * width + channel];
            }
            reduced[unit] = total[row];
        }
        sync_cube();
        let own = first_row + row;
        if own < group * new {
            let line = (batch * query_heads + kv_head * group + own / new) * new + own % new;
            let place = line * parts.stride(0) + part * parts.stride(1);
            let next = parts.stride(2);
            let mut channel = unit;
            while channel < head_dim {
                let mut sum = f32::new(0.0);
                for other in 0..stripes {
                    sum += partial[(other * width + channel % width) * lanes + channel / width];
                }
                parts[place + channel * next] = sum;
                channel += UNITS;
            }
            if unit == 0 {
                let mut sum = f32::new(0.0);
                for other in 0..stripes {
                    sum += reduced[other * lanes];
                }
                parts[place + head_dim * next] = sum;
                parts[place + (head_dim + 1) * next] = highest[row];
            }
        }
        sync_cube();
    }
}
