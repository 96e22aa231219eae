use cubecl::prelude::*;

use super::entries::{Entries, EntryKinds, HeadEntries, head_entries, is_free};
use crate::{
    attention::{
        decode::{
            merge::part_width,
            split::mma::{together, weigh_row},
        },
        scoring::{ScoreArgs, ScoreKinds},
    },
    common::{
        line::StridedSlice,
        masked::MASKED,
        nvidia::copy::{commit_copies, copy_chunk, wait_for_copies_but},
        strides::RowStrides,
        tile::mma::{CHUNK, Chunk, Pair, SLACK, accumulators, definition, two, zeros},
    },
};

/// Planes of a cube.
pub(crate) const PLANES: usize = 4;
/// Query rows of a cube.
pub(crate) const ROWS: usize = 16;
/// Entries of a tile.
pub(crate) const TILE: usize = 16;
/// Tiles of a plane in shared memory: all on their way, until one is multiplied. Two cubes fit on a
/// multiprocessor then.
const STAGES: usize = 2;

/// Numbers of a vector of sums.
const FOUR: usize = 4;
type Four<E> = Vector<E, Const<4>>;

/// Compile-time parameters of the decode kernel on tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DecodeMmaBlueprint {
    /// A multiple of 64.
    pub(crate) head_dim: usize,
    /// Whether there are more than 8 query rows.
    pub(crate) tall: bool,
    pub(crate) kinds: EntryKinds,
    pub(crate) scoring: ScoreKinds,
    /// Whether a cube has all entries of its heads: it writes their output, and weights in place
    /// of scores.
    pub(crate) whole: bool,
}

impl DecodeMmaBlueprint {
    /// Chunks of a key or value.
    const fn chunks(self) -> usize {
        self.head_dim / CHUNK
    }

    /// Chunks of a stage of a plane: a tile of keys, and behind them their values.
    const fn stage(self) -> usize {
        2 * TILE * self.chunks()
    }
}

/// Sizes, and where rows are, as scalars.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct DecodeLayout {
    /// Query heads of a kv head.
    group: usize,
    kv_heads: usize,
    /// Queries of a head.
    new: usize,
    /// Entries of a head that are in no list.
    entries: usize,
    /// Tiles of a cube.
    share: usize,
    queries: RowStrides,
    keys: RowStrides,
    values: RowStrides,
    /// Chunks from one row of a list to the next.
    list_key: usize,
    list_value: usize,
}

/// Where a chunk of a key of a tile is in shared memory. Lanes that read at once, four chunks of
/// two keys, read from different banks.
#[cube]
fn place_of_key(row: usize, chunk: usize, #[comptime] chunks: usize) -> usize {
    row * chunks + (chunk ^ (row % 2 * 4))
}

/// The same of a value, of which two chunks of every other one are read at once.
#[cube]
fn place_of_value(row: usize, chunk: usize, #[comptime] chunks: usize) -> usize {
    row * chunks + (chunk ^ (row / 2 % 4 * 2))
}

/// First chunk of the keys and of the values of a head behind its list.
#[derive(CubeType)]
struct RowStarts {
    keys: usize,
    values: usize,
}

/// Begins to copy the keys and values of a tile into a stage of the plane, if the cube has it, and
/// commits the copies. Whole rows are read at once; behind the last entry it is read again.
#[cube]
fn copy_tile<E: Float, I: Int>(
    of: &Entries<Chunk<E>, I>,
    head: &HeadEntries,
    starts: &RowStarts,
    stages: &mut Shared<[Chunk<E>]>,
    stage: usize,
    tile: usize,
    layout: &DecodeLayout,
    #[comptime] blueprint: DecodeMmaBlueprint,
) {
    let chunks = comptime!(blueprint.chunks());
    // So the compiler knows how large it is, and works out what does not depend on it.
    let lane = UNIT_POS_PLANE as usize % 32;
    let chunk = lane % chunks;
    if tile < head.end {
        let in_list = comptime!(blueprint.kinds.listed) && tile < head.list_tiles;
        let base = select(in_list, tile, tile - head.list_tiles) * TILE + lane / chunks;
        let last = select(in_list, head.held, head.tail).max(1) - 1;
        #[unroll]
        for load in 0..comptime!(TILE * chunks / 32) {
            let ahead = load * comptime!(32 / chunks);
            let own = ahead + lane / chunks;
            let row = (base + ahead).min(last);
            let key = stage + place_of_key(own, chunk, chunks);
            let value = stage + comptime!(TILE * chunks) + place_of_value(own, chunk, chunks);
            if in_list {
                let row = head.list_start + row;
                let from = row * layout.list_key + chunk;
                copy_chunk::<E>(&mut stages[key], &of.list.keys[from]);
                let from = row * layout.list_value + chunk;
                copy_chunk::<E>(&mut stages[value], &of.list.values[from]);
            } else {
                let from = starts.keys + row * layout.keys.row + chunk;
                copy_chunk::<E>(&mut stages[key], &of.rows.keys[from]);
                let from = starts.values + row * layout.values.row + chunk;
                copy_chunk::<E>(&mut stages[value], &of.rows.values[from]);
            }
        }
    }
    commit_copies();
}

/// Where a vector of sums of a row is in shared memory: eight lanes that write at once, four of
/// each of two rows, write to different banks.
#[cube]
fn place_of_sums(row: usize, four: usize) -> usize {
    four ^ (four / 8 % 2) ^ (row % 2 * 2)
}

/// [`together`] of a row, with the sink of its head if there are sinks.
#[cube]
fn all_weights(
    scoring: &ScoreArgs,
    extremes: &Shared<[f32]>,
    row: usize,
    head: usize,
    #[comptime] rows: usize,
    #[comptime] sinks: bool,
) -> (f32, f32) {
    let (most, total) = together(extremes, row, rows, PLANES);
    if comptime!(sinks) {
        let (most, total, _) = scoring.with_sink(most, total, head);
        (most, total)
    } else {
        (most, total)
    }
}

/// Part of the entries of [`super::dense`] that one cube has, on tensor cores. Rows of keys and
/// values are contiguous and 16-byte aligned.
///
/// Each plane copies the tiles it multiplies, some ahead. The order of channels in a product does
/// not matter, so each lane takes chunks of 16 bytes as they are.
#[cube(launch)]
// The outer condition of two is decided when the kernel is expanded.
#[allow(clippy::collapsible_if)]
pub(crate) fn decode_planes<E: Float, I: Int>(
    queries: &[Chunk<E>],
    of: &Entries<Chunk<E>, I>,
    parts: &mut [Four<f32>],
    output: &mut [Four<E>],
    weights: &mut Tensor<f32>,
    layout: &DecodeLayout,
    scoring: &ScoreArgs,
    #[comptime] blueprint: DecodeMmaBlueprint,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let DecodeMmaBlueprint { head_dim, tall, kinds, scoring: score_kinds, whole } = blueprint;
    let EntryKinds { listed, by_position, weights: wanted, .. } = kinds;
    let chunks = comptime!(blueprint.chunks());
    let spans = comptime!(head_dim / 32);
    let groups = comptime!(head_dim / 64);
    let halves = comptime!(if tall { 2usize } else { 1usize });
    let rows = comptime!(8 * halves);

    let unit = UNIT_POS as usize;
    let plane = unit / 32;
    let lane = UNIT_POS_PLANE as usize % 32;
    let line = lane / 4;
    let quad = lane % 4;
    let new = layout.new;
    let kv_heads = layout.kv_heads;
    let group = layout.group;
    let entries = layout.entries;
    let blocks = (group * new).div_ceil(rows);
    let kv_head = CUBE_POS_Y as usize / blocks;
    let first_row = CUBE_POS_Y as usize % blocks * rows;
    let batch = CUBE_POS_Z as usize;
    let part = CUBE_POS_X as usize;

    let kv = batch * kv_heads + kv_head;
    let own_entries =
        head_entries::<Chunk<E>, I>(of, &*weights, kv, entries, layout.share, TILE, PLANES, kinds);
    let (held, tail) = (own_entries.held, own_entries.tail);
    let starts = RowStarts {
        keys: layout.keys.at(batch, kv_head, 0),
        values: layout.values.at(batch, kv_head, 0),
    };
    let mut ring = Shared::<[Chunk<E>]>::new_aligned_slice(
        comptime!(PLANES * STAGES * blueprint.stage()),
        16usize,
    );
    let own_ring = plane * comptime!(STAGES * blueprint.stage());
    let mut tile = own_entries.first + plane;
    #[unroll]
    for ahead in 0..STAGES {
        let stage = own_ring + comptime!(ahead * blueprint.stage());
        let tile = tile + ahead * PLANES;
        copy_tile::<E, I>(of, &own_entries, &starts, &mut ring, stage, tile, layout, blueprint);
    }

    // Queries, in the order in which keys will come.
    let mut loads = Array::<Chunk<E>>::new(comptime!(halves * spans));
    #[unroll]
    for half in 0..halves {
        let own = first_row + half * 8 + line;
        // Behind the last row, that one: nothing is written of it.
        let own = own.min(group * new - 1);
        let place = layout.queries.at(batch, kv_head * group + own / new, own % new);
        #[unroll]
        for span in 0..spans {
            loads[half * spans + span] = queries[place + span * 4 + quad];
        }
    }
    let mut a = Sequence::<Array<Pair<E>>>::new();
    #[unroll]
    for span in 0..spans {
        #[unroll]
        for step in 0..2usize {
            let mut fragment = Array::<Pair<E>>::new(4usize);
            #[unroll]
            for register in 0..4usize {
                let mut pair = Pair::<E>::new(E::new(0.0));
                if comptime!(register.is_multiple_of(2) || tall) {
                    let load = loads[register % 2 * spans + span];
                    pair = two::<E>(&load, comptime!(step * 2 + register / 2));
                }
                fragment[register] = pair;
            }
            a.push(fragment);
        }
    }

    let mut row_positions = Array::<i32>::new(halves);
    let mut highest = Array::<f32>::new(halves);
    let mut total = Array::<f32>::new(halves);
    #[unroll]
    for half in 0..halves {
        let own = (first_row + half * 8 + line).min(group * new - 1);
        let mut position = i32::cast_from(tail + own % new) - i32::cast_from(new);
        if comptime!(by_position && !listed) {
            let positions = &of.query_positions;
            let place = batch * positions.stride(0) + own % new * positions.stride(2);
            position = i32::cast_from(positions[place]);
        }
        row_positions[half] = position;
        highest[half] = MASKED;
        total[half] = 0.0;
    }
    let mut sums = accumulators(comptime!(groups * 8));
    let mut number = 0usize.runtime();
    while tile < own_entries.end {
        let in_list = comptime!(listed) && tile < own_entries.list_tiles;
        let base = select(in_list, tile, tile - own_entries.list_tiles) * TILE;
        let count = select(in_list, held, tail);
        let of_list = own_entries.list_columns;
        let before = select(in_list, of_list - held.min(of_list), of_list);

        wait_for_copies_but(comptime!(STAGES as u32 - 1));
        sync_plane();
        let stage = own_ring + number % STAGES * comptime!(blueprint.stage());
        let own_values = stage + comptime!(TILE * chunks);

        let mut scores = Sequence::<Array<Pair<f32>>>::new();
        #[unroll]
        for eight in 0..2usize {
            let mut score = zeros();
            #[unroll]
            for span in 0..spans {
                let place = place_of_key(eight * 8 + line, span * 4 + quad, chunks);
                let chunk = ring[stage + place];
                #[unroll]
                for step in 0..2usize {
                    let mut b = Array::<Pair<E>>::new(2usize);
                    #[unroll]
                    for register in 0..2usize {
                        b[register] = two::<E>(&chunk, comptime!(step * 2 + register));
                    }
                    definition::<E>().execute_inplace(&a[span * 2 + step], &b, &mut score);
                }
            }
            // Whom the rows of this lane see, and what is written of it.
            #[unroll]
            for half in 0..halves {
                let mut pair = score[half] * Pair::<f32>::new(scoring.scale);
                let row = first_row + half * 8 + line;
                let head = kv_head * group + row.min(group * new - 1) / new;
                #[unroll]
                for side in 0..2usize {
                    let entry = base + eight * 8 + quad * 2 + side;
                    let mut hidden = entry >= count;
                    // The entry's position less the query's.
                    let mut distance = 0i32.runtime();
                    if comptime!(by_position && listed) {
                        let from_end = held - entry.min(held);
                        let free = is_free::<I>(&of.entry_positions, batch, kv_head, from_end);
                        hidden = hidden || in_list && free;
                    } else if comptime!(by_position) {
                        let positions = &of.entry_positions;
                        let place = batch * positions.stride(0)
                            + kv_head * positions.stride(1)
                            + entry.min(entries - 1) * positions.stride(2);
                        let position = i32::cast_from(positions[place]);
                        hidden = hidden || position < 0 || position > row_positions[half];
                        if comptime!(score_kinds.reads_distances()) {
                            distance = position - row_positions[half];
                        }
                    } else if comptime!(!listed) {
                        hidden = hidden || i32::cast_from(entry) > row_positions[half];
                        if comptime!(score_kinds.reads_distances()) {
                            distance = i32::cast_from(entry) - row_positions[half];
                        }
                    }
                    if comptime!(score_kinds.window) {
                        hidden =
                            hidden || scoring.hides(distance, row_positions[half], score_kinds);
                    }
                    let own = scoring.score(pair.extract(side), head, distance, score_kinds);
                    pair.insert(side, select(hidden, MASKED, own));
                    if comptime!(wanted) {
                        if entry < count && row < group * new {
                            let place = batch * weights.stride(0)
                                + (kv_head * group + row / new) * weights.stride(1)
                                + row % new * weights.stride(2)
                                + (before + entry) * weights.stride(3);
                            weights[place] = pair.extract(side);
                        }
                    }
                }
                score[half] = pair;
            }
            scores.push(score);
        }

        // Weights are relative to a score of the row at most `SLACK` below its highest so far.
        let mut high = Array::<f32>::new(halves);
        let mut moves = false;
        #[unroll]
        for half in 0..halves {
            let left = scores[0][half];
            let right = scores[1][half];
            let mut most = left.extract(0usize).max(left.extract(1usize));
            most = most.max(right.extract(0usize).max(right.extract(1usize)));
            most = most.max(plane_shuffle_xor(most, 1));
            most = most.max(plane_shuffle_xor(most, 2));
            high[half] = most;
            moves = moves || most - highest[half] > SLACK;
        }
        if plane_any(moves) {
            #[unroll]
            for half in 0..halves {
                let most = high[half].max(highest[half]);
                let kept = (highest[half] - most).exp();
                highest[half] = most;
                total[half] *= kept;
                #[unroll]
                for place in 0..comptime!(groups * 8) {
                    let sum = &mut sums[place];
                    sum[half] *= Pair::<f32>::new(kept);
                }
            }
        }
        let mut weight = Array::<Pair<E>>::new(4usize);
        #[unroll]
        for register in 0..4usize {
            let mut pair = Pair::<E>::new(E::new(0.0));
            if comptime!(register.is_multiple_of(2) || tall) {
                let half = comptime!(register % 2);
                let score = scores[register / 2][half];
                let seen = highest[half] > MASKED;
                let left = (score.extract(0usize) - highest[half]).exp();
                let right = (score.extract(1usize) - highest[half]).exp();
                let left = select(seen, left, 0.0);
                let right = select(seen, right, 0.0);
                total[half] += left + right;
                let mut two = Pair::<f32>::empty();
                two.insert(0usize, left);
                two.insert(1usize, right);
                pair = Pair::<E>::cast_from(two);
            }
            weight[register] = pair;
        }
        #[unroll]
        for span in 0..groups {
            let mut value = Array::<Chunk<E>>::new(4usize);
            #[unroll]
            for load in 0..4usize {
                let own = quad * 2 + load / 2 * 8 + load % 2;
                value[load] = ring[own_values + place_of_value(own, span * 8 + line, chunks)];
            }
            #[unroll]
            for channel in 0..CHUNK {
                let mut b = Array::<Pair<E>>::new(2usize);
                #[unroll]
                for register in 0..2usize {
                    let mut pair = Pair::<E>::empty();
                    pair.insert(0usize, value[register * 2].extract(channel));
                    pair.insert(1usize, value[register * 2 + 1].extract(channel));
                    b[register] = pair;
                }
                definition::<E>().execute_inplace(&weight, &b, &mut sums[span * CHUNK + channel]);
            }
        }
        // Nobody reads this tile any more: another takes its place.
        sync_plane();
        let next = tile + comptime!(STAGES * PLANES);
        copy_tile::<E, I>(of, &own_entries, &starts, &mut ring, stage, next, layout, blueprint);
        tile += PLANES;
        number += 1;
    }

    // What the planes have found, put together in order.
    let fours = comptime!(head_dim / FOUR);
    let own_rows = rows.min(group * new - first_row);
    let mut stage =
        Shared::<[Four<f32>]>::new_aligned_slice(comptime!(PLANES * rows * fours), 16usize);
    let mut extremes = Shared::<[f32]>::new_slice(comptime!(PLANES * rows * 2));
    #[unroll]
    for half in 0..halves {
        let own = half * 8 + line;
        let row = plane * rows + own;
        let mut sum = total[half];
        sum += plane_shuffle_xor(sum, 1);
        sum += plane_shuffle_xor(sum, 2);
        if quad == 0 {
            extremes[row * 2] = highest[half];
            extremes[row * 2 + 1] = sum;
        }
        if own < own_rows {
            #[unroll]
            for run in 0..comptime!(groups * 4) {
                let (span, side, second) = comptime!((run / 4, run / 2 % 2, run % 2));
                let mut four = Four::<f32>::empty();
                #[unroll]
                for channel in 0..FOUR {
                    let pair = sums[comptime!(span * CHUNK + second * FOUR + channel)][half];
                    four.insert(channel, pair.extract(side));
                }
                let place = place_of_sums(own, span * 16 + quad * 4 + side * 2 + second);
                stage[row * fours + place] = four;
            }
        }
    }
    sync_cube();
    if comptime!(whole && wanted) {
        // All units see the scores that others have written.
        sync_storage();
        sync_cube();
        for row in 0..own_rows {
            let own = first_row + row;
            let head = kv_head * group + own / new;
            let (most, sum) = all_weights(scoring, &extremes, row, head, rows, score_kinds.sinks);
            let factor = select(sum == 0.0, 0.0, 1.0 / sum);
            let start = batch * weights.stride(0)
                + head * weights.stride(1)
                + own % new * weights.stride(2);
            let scores = StridedSlice { start, stride: weights.stride(3) };
            weigh_row(weights, &scores, entries, most, factor, comptime!(PLANES * 32));
        }
    }
    let part_fours = comptime!(part_width(head_dim) / FOUR);
    let mut index = unit;
    while index < own_rows * fours {
        let row = index / fours;
        let four = index % fours;
        let head = kv_head * group + (first_row + row) / new;
        // Parts are without sinks.
        let sinks = comptime!(whole && score_kinds.sinks);
        let (most, total) = all_weights(scoring, &extremes, row, head, rows, sinks);
        let mut factor = f32::new(1.0);
        if comptime!(whole) {
            // A query that sees nothing has the sum zero.
            factor = select(total == 0.0, 0.0, 1.0 / total);
        }
        let mut sum = Four::<f32>::new(0.0);
        #[unroll]
        for plane in 0..PLANES {
            let from = plane * rows + row;
            let share = (extremes[from * 2] - most).exp() * factor;
            sum += Four::<f32>::new(share) * stage[from * fours + place_of_sums(row, four)];
        }
        // Rows of a head follow each other, and heads.
        let line = (batch * kv_heads + kv_head) * group * new + first_row + row;
        if comptime!(whole) {
            output[line * fours + four] = Four::<E>::cast_from(sum);
        } else {
            let place = (line * CUBE_COUNT_X as usize + part) * part_fours;
            parts[place + four] = sum;
            if four == 0 {
                let mut extreme = Four::<f32>::new(0.0);
                extreme.insert(0usize, total);
                extreme.insert(1usize, most);
                parts[place + fours] = extreme;
            }
        }
        index += comptime!(PLANES * 32);
    }
}
