//! The two passes on tensor cores.
//!
//! Planes are on their own: each has 32 keys at a time, which go from memory to the registers of
//! the instruction, for the order of channels in a product does not matter and each lane takes the
//! 16 bytes that it has loaded as they are. The queries are in shared memory all the while, in the
//! same order.

// A kernel takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::portable::{EPSILON, Kind};
use crate::{
    attention::scoring::{ScoreArgs, ScoreKinds},
    common::{
        masked::{LOWEST, MASKED},
        tile::mma::{CHUNK, Chunk, Pair, accumulators, definition, two},
    },
};

/// Planes of a cube.
pub(super) const PLANES: usize = 4;
/// Keys of a plane at a time.
pub(super) const KEYS: usize = 32;
/// Splits that are read at once where they are merged.
const AT_ONCE: usize = 16;

/// Compile-time parameters of the kernels on tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WindowBlueprint {
    /// A multiple of 32.
    pub(super) head_dim: usize,
    /// Query rows of a cube, a multiple of 16.
    pub(super) rows: usize,
    /// Whether positions say which entries a query sees.
    pub(super) by_position: bool,
    pub(super) kinds: ScoreKinds,
}

/// Place of a chunk of a query row in shared memory. Four lanes read a row and four the next at
/// once, from different banks: the halves of every eight chunks change places in odd rows, unless
/// rows are an odd multiple of four chunks.
#[cube]
fn slot(row: usize, chunk: usize, #[comptime] head_dim: usize) -> usize {
    let chunks = comptime!(head_dim / CHUNK);
    let mut own = chunk;
    if comptime!(chunks.is_multiple_of(8)) {
        own = chunk ^ (row % 2 * 4);
    }
    row * chunks + own
}

/// Loads the chunks of a lane of the keys from `base` on: key `lane / 4` of each eight,
/// `head_dim / 32` chunks per key.
#[cube]
fn load_keys<E: Float>(
    keys: &Tensor<Chunk<E>>,
    start: usize,
    base: usize,
    #[comptime] head_dim: usize,
) -> Array<Chunk<E>> {
    let spans = comptime!(head_dim / 32);
    let lane = UNIT_POS_PLANE as usize;
    let mut loaded = Array::<Chunk<E>>::new(comptime!(4 * spans));
    #[unroll]
    for load in 0..comptime!(4 * spans) {
        let row = (base + load / spans * 8 + lane / 4).min(keys.shape(2) - 1);
        loaded[load] = keys[(start + row * keys.stride(2)) / CHUNK + load % spans * 4 + lane % 4];
    }
    loaded
}

/// Query heads of a kv head, whose rows lie one after another.
#[derive(CubeType)]
struct HeadRows {
    /// The first of the heads.
    first: usize,
    /// Rows of each.
    queries: usize,
    group: usize,
}

#[cube]
impl HeadRows {
    /// The query head of a row; the last if there is no such row.
    fn of(&self, row: usize) -> usize {
        self.first + (row / self.queries).min(self.group - 1)
    }
}

/// Running maximum and sum of each lane for its rows. Registers have no room for all of them.
#[derive(CubeType)]
struct Own {
    highest: Shared<[f32]>,
    total: Shared<[f32]>,
}

/// Takes the scores of 32 keys into maxima and sums, 16 rows at a time. `first_row` is the first of
/// the rows of a kv head. All rows see all keys, and scores are plain, unless `masked` is set.
#[cube]
fn measure_tile<E: Float>(
    stage: &Shared<[Chunk<E>]>,
    limits: &Shared<[i32]>,
    key: &Array<Chunk<E>>,
    positions: &Array<i32>,
    own: &mut Own,
    base: usize,
    entries: usize,
    blocks: usize,
    scoring: &ScoreArgs,
    heads: &HeadRows,
    first_row: usize,
    #[comptime] blueprint: WindowBlueprint,
    #[comptime] masked: bool,
) {
    let WindowBlueprint { head_dim, kinds, .. } = blueprint;
    let scale = scoring.late_scale(kinds);
    let spans = comptime!(head_dim / 32);
    let units = comptime!(PLANES * 32);
    let unit = UNIT_POS as usize;
    let lane = UNIT_POS_PLANE as usize;
    let (line, quad) = (lane / 4, lane % 4);
    for block in 0..blocks {
        let mut scores = accumulators(4usize);
        #[unroll]
        for span in 0..spans {
            let upper = stage[slot(block * 16 + line, span * 4 + quad, head_dim)];
            let lower = stage[slot(block * 16 + 8 + line, span * 4 + quad, head_dim)];
            #[unroll]
            for step in 0..2usize {
                let mut a = Array::<Pair<E>>::new(4usize);
                a[0] = two::<E>(&upper, comptime!(step * 2));
                a[1] = two::<E>(&lower, comptime!(step * 2));
                a[2] = two::<E>(&upper, comptime!(step * 2 + 1));
                a[3] = two::<E>(&lower, comptime!(step * 2 + 1));
                #[unroll]
                for eight in 0..4usize {
                    let mut b = Array::<Pair<E>>::new(2usize);
                    b[0] = two::<E>(&key[eight * spans + span], comptime!(step * 2));
                    b[1] = two::<E>(&key[eight * spans + span], comptime!(step * 2 + 1));
                    definition::<E>().execute_inplace(&a, &b, &mut scores[eight]);
                }
            }
        }
        if comptime!(masked) {
            #[unroll]
            for half in 0..2usize {
                let row = block * 16 + half * 8 + line;
                let limit = limits[row];
                let mut head = 0usize.runtime();
                if comptime!(kinds.slopes) {
                    head = heads.of(first_row + row);
                }
                #[unroll]
                for column in 0..8usize {
                    let (eight, side) = comptime!((column / 2, column % 2));
                    let exists = base + eight * 8 + quad * 2 + side < entries;
                    let position = positions[column];
                    let mut hidden = position < 0 || position > limit;
                    if comptime!(kinds.window) {
                        hidden = hidden || scoring.hides(position - limit, limit, kinds);
                    }
                    let score = &mut scores[eight];
                    let mut pair = score[half];
                    let own = pair.extract(side);
                    let own = scoring.late_score(own, head, position - limit, kinds);
                    let seen = select(hidden, MASKED, own);
                    pair.insert(side, select(exists, seen, LOWEST));
                    score[half] = pair;
                }
            }
        }
        #[unroll]
        for half in 0..2usize {
            let place = (block * 2 + half) * units + unit;
            let before = own.highest[place];
            let mut most = before;
            #[unroll]
            for eight in 0..4usize {
                let pair = scores[eight][half];
                most = most.max(pair.extract(0usize).max(pair.extract(1usize)));
            }
            let mut sum = own.total[place] * ((before - most) * scale).exp();
            #[unroll]
            for eight in 0..4usize {
                let pair = scores[eight][half];
                sum += ((pair.extract(0usize) - most) * scale).exp();
                sum += ((pair.extract(1usize) - most) * scale).exp();
            }
            own.highest[place] = most;
            own.total[place] = sum;
        }
    }
}

/// First pass: the highest score of each row among the keys of a cube, and the sum of exponentials
/// relative to it. `found` is `[splits, batch · kv_heads, 2, rows]`. Plain scores are not
/// multiplied by the scale yet, which is above zero.
#[cube(launch)]
pub(super) fn measure_planes<E: Float, I: Int>(
    queries: &Tensor<Chunk<E>>,
    keys: &Tensor<Chunk<E>>,
    query_positions: &Tensor<I>,
    entry_positions: &Tensor<I>,
    found: &mut Tensor<f32>,
    old: usize,
    scoring: &ScoreArgs,
    share: usize,
    #[comptime] blueprint: WindowBlueprint,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let WindowBlueprint { head_dim, rows, by_position, kinds } = blueprint;
    let scale = scoring.late_scale(kinds);
    let chunks = comptime!(head_dim / CHUNK);
    let units = comptime!(PLANES * 32);
    let halves = comptime!(rows / 8);

    let unit = UNIT_POS as usize;
    let plane = unit / 32;
    let lane = UNIT_POS_PLANE as usize;
    let quad = lane % 4;
    let (new, entries) = (queries.shape(2), keys.shape(2));
    let group = queries.shape(1) / keys.shape(1);
    let split = CUBE_POS_X as usize;
    let first = CUBE_POS_Y as usize * rows;
    let list = CUBE_POS_Z as usize;
    let (batch, kv_head) = (list / keys.shape(1), list % keys.shape(1));
    let key_start = batch * keys.stride(0) + kv_head * keys.stride(1);
    let position_start = batch * entry_positions.stride(0) + kv_head * entry_positions.stride(1);

    let mut stage = Shared::<[Chunk<E>]>::new_aligned_slice(comptime!(rows * chunks), 16usize);
    let mut limits = Shared::<[i32]>::new_slice(rows);
    let mut index = unit;
    while index < comptime!(rows * chunks) {
        let row = (first + index / chunks).min(group * new - 1);
        let place = batch * queries.stride(0)
            + (kv_head * group + row / new) * queries.stride(1)
            + row % new * queries.stride(2);
        stage[slot(index / chunks, index % chunks, head_dim)] =
            queries[place / CHUNK + index % chunks];
        index += units;
    }
    let mut index = unit;
    while index < rows {
        let query = (first + index).min(group * new - 1) % new;
        let mut limit = i32::cast_from(query + old);
        if comptime!(by_position) {
            let place = batch * query_positions.stride(0) + query * query_positions.stride(2);
            limit = i32::cast_from(query_positions[place]);
        }
        limits[index] = limit;
        index += units;
    }
    sync_cube();

    // Each lane keeps its own, which meet at the end.
    let mut own = Own {
        highest: Shared::<[f32]>::new_slice(comptime!(halves * units)),
        total: Shared::<[f32]>::new_slice(comptime!(halves * units)),
    };
    #[unroll]
    for half in 0..halves {
        own.highest[half * units + unit] = LOWEST;
        own.total[half * units + unit] = 0.0;
    }
    let blocks = (group * new - first).min(rows).div_ceil(16);
    let heads = HeadRows { first: kv_head * group, queries: new, group };
    let mut tile = split * share + plane;
    let end = ((split + 1) * share).min(entries.div_ceil(KEYS));
    while tile < end {
        let base = tile * KEYS;
        let key = load_keys::<E>(keys, key_start, base, head_dim);
        let mut positions = Array::<i32>::new(8usize);
        #[unroll]
        for place in 0..8usize {
            let column = base + place / 2 * 8 + quad * 2 + place % 2;
            let mut position = i32::cast_from(column);
            if comptime!(by_position) {
                let start = position_start + column.min(entries - 1) * entry_positions.stride(2);
                position = i32::cast_from(entry_positions[start]);
            }
            positions[place] = position;
        }
        if comptime!(!by_position && kinds == ScoreKinds::default()) && base + KEYS <= old + 1 {
            measure_tile::<E>(
                &stage, &limits, &key, &positions, &mut own, base, entries, blocks, scoring,
                &heads, first, blueprint, false,
            );
        } else {
            measure_tile::<E>(
                &stage, &limits, &key, &positions, &mut own, base, entries, blocks, scoring,
                &heads, first, blueprint, true,
            );
        }
        tile += PLANES;
    }

    // What lanes and planes have found, put together in their order.
    #[unroll]
    for half in 0..halves {
        let place = half * units + unit;
        let high = own.highest[place];
        let mut most = high.max(plane_shuffle_xor(high, 1));
        most = most.max(plane_shuffle_xor(most, 2));
        own.highest[place] = most;
        own.total[place] = over_lanes(own.total[place] * ((high - most) * scale).exp());
    }
    sync_cube();
    let mut row = unit;
    while row < rows {
        if first + row < group * new {
            let start = row / 8 * units + row % 8 * 4;
            let mut most = LOWEST.runtime();
            #[unroll]
            for plane in 0..PLANES {
                most = most.max(own.highest[start + plane * 32]);
            }
            let mut sum = f32::new(0.0);
            #[unroll]
            for plane in 0..PLANES {
                let high = own.highest[start + plane * 32];
                sum += own.total[start + plane * 32] * ((high - most) * scale).exp();
            }
            let place = split * found.stride(0) + list * found.stride(1) + first + row;
            let next = found.stride(2);
            found[place] = most;
            found[place + next] = sum;
        }
        row += units;
    }
}

/// Merges the splits of a row in their order: the highest score, and one over the sum. If nothing
/// is in the row's window, the former is above every score, so that weights are zero.
#[cube]
fn merge(
    found: &Tensor<f32>,
    start: usize,
    scoring: &ScoreArgs,
    query_head: usize,
    #[comptime] kinds: ScoreKinds,
) -> (f32, f32) {
    let scale = scoring.late_scale(kinds);
    let splits = found.shape(0);
    let mut most = LOWEST.runtime();
    let mut split = 0usize.runtime();
    while split < splits {
        let mut read = Array::<f32>::new(AT_ONCE);
        #[unroll]
        for next in 0..AT_ONCE {
            read[next] = found[start + (split + next).min(splits - 1) * found.stride(0)];
        }
        #[unroll]
        for next in 0..AT_ONCE {
            most = most.max(read[next]);
        }
        split += AT_ONCE;
    }
    let mut total = f32::new(0.0);
    split = 0usize.runtime();
    while split < splits {
        let mut highest = Array::<f32>::new(AT_ONCE);
        let mut sums = Array::<f32>::new(AT_ONCE);
        #[unroll]
        for next in 0..AT_ONCE {
            let place = start + (split + next).min(splits - 1) * found.stride(0);
            highest[next] = found[place];
            sums[next] = found[place + found.stride(2)];
        }
        #[unroll]
        for next in 0..AT_ONCE {
            let part = sums[next] * ((highest[next] - most) * scale).exp();
            total += select(split + next < splits, part, 0.0);
        }
        split += AT_ONCE;
    }
    let blind = most <= MASKED;
    if comptime!(kinds.sinks) {
        let (high, with_sink, _) = scoring.with_sink(most * scale, total, query_head);
        most = high / scale;
        total = with_sink;
    }
    if comptime!(kinds.window) && blind {
        most = -LOWEST;
    }
    (most, 1.0 / total)
}

/// Sum over the four lanes of a key.
#[cube]
fn over_lanes(sum: f32) -> f32 {
    let sum = sum + plane_shuffle_xor(sum, 1);
    sum + plane_shuffle_xor(sum, 2)
}

/// Sum of the key that the lane writes, of the four it has.
#[cube]
fn own_of(sums: &Array<f32>) -> f32 {
    let quad = UNIT_POS_PLANE % 4;
    let low = select(quad == 0, sums[0], sums[1]);
    let high = select(quad == 2, sums[2], sums[3]);
    select(quad < 2, low, high)
}

/// Second pass: computes the scores again and turns them into weights. A cube has as many whole
/// heads as fit into its rows, each from a multiple of 16 on.
#[cube(launch)]
pub(super) fn weigh_planes<E: Float, I: Int>(
    queries: &Tensor<Chunk<E>>,
    keys: &Tensor<Chunk<E>>,
    query_positions: &Tensor<I>,
    entry_positions: &Tensor<I>,
    counted: &Tensor<I>,
    found: &Tensor<f32>,
    first: &mut Tensor<f32>,
    deviations: &mut Tensor<f32>,
    entropies: &mut Tensor<f32>,
    old: usize,
    scoring: &ScoreArgs,
    share: usize,
    #[comptime] blueprint: WindowBlueprint,
    #[comptime] kind: Kind,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let WindowBlueprint { head_dim, rows, by_position, kinds } = blueprint;
    let scale = scoring.late_scale(kinds);
    let (single, deviate, scatter) = comptime!(match kind {
        Kind::Weights => (true, false, false),
        Kind::Moments { deviations, entropies } => (false, deviations, entropies),
    });
    let chunks = comptime!(head_dim / CHUNK);
    let spans = comptime!(head_dim / 32);
    let units = comptime!(PLANES * 32);

    let unit = UNIT_POS as usize;
    let plane = unit / 32;
    let lane = UNIT_POS_PLANE as usize;
    let (line, quad) = (lane / 4, lane % 4);
    let (new, entries) = (queries.shape(2), keys.shape(2));
    let group = queries.shape(1) / keys.shape(1);
    let of_head = new.div_ceil(16) * 16;
    let most_heads = (rows / of_head).min(group);
    let first_head = CUBE_POS_Y as usize * most_heads;
    let heads = (group - first_head).min(most_heads);
    let split = CUBE_POS_X as usize;
    let list = CUBE_POS_Z as usize;
    let (batch, kv_head) = (list / keys.shape(1), list % keys.shape(1));
    let key_start = batch * keys.stride(0) + kv_head * keys.stride(1);
    let position_start = batch * entry_positions.stride(0) + kv_head * entry_positions.stride(1);

    let mut stage = Shared::<[Chunk<E>]>::new_aligned_slice(comptime!(rows * chunks), 16usize);
    let mut limits = Shared::<[i32]>::new_slice(rows);
    let mut high_of = Shared::<[f32]>::new_slice(rows);
    let mut factor_of = Shared::<[f32]>::new_slice(rows);
    let uncounted = new - usize::cast_from(counted[batch * counted.stride(0)]);
    let mut row = unit;
    while row < rows {
        let (head, query) = (row / of_head, row % of_head);
        // Whatever the score, the weight of a row that does not count is zero.
        let mut high = f32::new(-LOWEST);
        let mut factor = f32::new(0.0);
        let mut limit = 0i32.runtime();
        if head < heads && query < new {
            limit = i32::cast_from(query + old);
            let mut counts = query >= uncounted;
            if comptime!(by_position) {
                let place = batch * query_positions.stride(0) + query * query_positions.stride(2);
                limit = i32::cast_from(query_positions[place]);
                counts = counts && limit >= 0;
            }
            if counts {
                let start = list * found.stride(1) + (first_head + head) * new + query;
                let head = kv_head * group + first_head + head;
                let (most, inverse) = merge(found, start, scoring, head, kinds);
                high = most;
                factor = inverse;
            }
        }
        limits[row] = limit;
        high_of[row] = high;
        factor_of[row] = factor;
        row += units;
    }
    sync_cube();
    let mut index = unit;
    while index < comptime!(rows * chunks) {
        let row = index / chunks;
        let mut chunk = Chunk::<E>::new(E::new(0.0));
        if factor_of[row] != 0.0 {
            let place = batch * queries.stride(0)
                + (kv_head * group + first_head + row / of_head) * queries.stride(1)
                + row % of_head * queries.stride(2);
            chunk = queries[place / CHUNK + index % chunks];
        }
        stage[slot(row, index % chunks, head_dim)] = chunk;
        index += units;
    }
    // How many of each 16 rows count.
    let mut counts = Shared::<[f32]>::new_slice(comptime!(rows / 16));
    if comptime!(deviate) && unit < comptime!(rows / 16) {
        let mut count = f32::new(0.0);
        for row in 0..16usize {
            count += select(factor_of[unit * 16 + row] != 0.0, 1.0, 0.0);
        }
        counts[unit] = count;
    }
    sync_cube();

    let mut tile = split * share + plane;
    let end = ((split + 1) * share).min(entries.div_ceil(KEYS));
    while tile < end {
        let base = tile * KEYS;
        let key = load_keys::<E>(keys, key_start, base, head_dim);
        let mut a = Sequence::<Array<Pair<E>>>::new();
        #[unroll]
        for span in 0..spans {
            #[unroll]
            for part in 0..4usize {
                let (step, tall) = comptime!((part / 2, part % 2));
                let mut fragment = Array::<Pair<E>>::new(4usize);
                #[unroll]
                for register in 0..4usize {
                    let chunk = key[(tall * 2 + register % 2) * spans + span];
                    fragment[register] = two::<E>(&chunk, comptime!(step * 2 + register / 2));
                }
                a.push(fragment);
            }
        }
        // A lane has four keys, eight apart.
        let mut positions = Array::<i32>::new(4usize);
        #[unroll]
        for own in 0..4usize {
            let column = base + own * 8 + line;
            let mut position = i32::cast_from(column);
            if comptime!(by_position) {
                let place = position_start + column.min(entries - 1) * entry_positions.stride(2);
                position = i32::cast_from(entry_positions[place]);
            }
            positions[own] = position;
        }
        let whole = base + KEYS <= old + 1;

        for head in 0..heads {
            let mut sums = Array::<f32>::new(4usize);
            // Of all blocks before, the same in the four lanes of a key.
            let mut sums_before = Array::<f32>::new(4usize);
            let mut between = Array::<f32>::new(4usize);
            let mut within = Array::<f32>::new(4usize);
            let mut scattered = Array::<f32>::new(4usize);
            #[unroll]
            for own in 0..4usize {
                sums[own] = 0.0;
                sums_before[own] = 0.0;
                between[own] = 0.0;
                within[own] = 0.0;
                scattered[own] = 0.0;
            }
            let mut before = f32::new(0.0);
            let query_head = kv_head * group + first_head + head;
            let of_query = query_head * first.stride(1);
            for block in 0..of_head / 16 {
                let row = head * of_head + block * 16;
                let mut scores = accumulators(4usize);
                #[unroll]
                for span in 0..spans {
                    let left = stage[slot(row + line, span * 4 + quad, head_dim)];
                    let right = stage[slot(row + 8 + line, span * 4 + quad, head_dim)];
                    #[unroll]
                    for step in 0..2usize {
                        #[unroll]
                        for part in 0..4usize {
                            let (tall, eight) = comptime!((part / 2, part % 2));
                            let mut b = Array::<Pair<E>>::new(2usize);
                            #[unroll]
                            for register in 0..2usize {
                                let which = comptime!(step * 2 + register);
                                b[register] = if comptime!(eight == 0) {
                                    two::<E>(&left, which)
                                } else {
                                    two::<E>(&right, which)
                                };
                            }
                            let place = comptime!(span * 4 + step * 2 + tall);
                            definition::<E>().execute_inplace(&a[place], &b, &mut scores[part]);
                        }
                    }
                }
                if comptime!(by_position || kinds != ScoreKinds::default()) || !whole {
                    #[unroll]
                    for query in 0..4usize {
                        let (eight, side) = comptime!((query / 2, query % 2));
                        let limit = limits[row + eight * 8 + quad * 2 + side];
                        #[unroll]
                        for own in 0..4usize {
                            let distance = positions[own] - limit;
                            let mut hidden = positions[own] < 0 || positions[own] > limit;
                            if comptime!(kinds.window) {
                                hidden = hidden || scoring.hides(distance, limit, kinds);
                            }
                            let score = &mut scores[own / 2 * 2 + eight];
                            let mut pair = score[own % 2];
                            let one =
                                scoring.late_score(pair.extract(side), query_head, distance, kinds);
                            pair.insert(side, select(hidden, MASKED, one));
                            score[own % 2] = pair;
                        }
                    }
                }

                let mut weights = Array::<f32>::new(16usize);
                let mut factors = Array::<f32>::new(4usize);
                #[unroll]
                for query in 0..4usize {
                    let (eight, side) = comptime!((query / 2, query % 2));
                    let place = row + eight * 8 + quad * 2 + side;
                    let high = high_of[place];
                    let factor = factor_of[place];
                    factors[query] = factor;
                    #[unroll]
                    for own in 0..4usize {
                        let score = scores[own / 2 * 2 + eight][own % 2].extract(side);
                        let part = ((score - high) * scale).exp();
                        // The same number whatever else is made of the weight.
                        sums[own] = fma(part, factor, sums[own]);
                        weights[query * 4 + own] = part * factor;
                    }
                }
                if comptime!(single) {
                    #[unroll]
                    for query in 0..4usize {
                        let (eight, side) = comptime!((query / 2, query % 2));
                        let place = block * 16 + eight * 8 + quad * 2 + side;
                        if place < new {
                            let start =
                                batch * first.stride(0) + of_query + place * first.stride(2);
                            #[unroll]
                            for own in 0..4usize {
                                let column = base + own * 8 + line;
                                if column < entries {
                                    first[start + column] = weights[query * 4 + own];
                                }
                            }
                        }
                    }
                }
                if comptime!(deviate) {
                    let count = counts[row / 16];
                    #[unroll]
                    for own in 0..4usize {
                        let mut sum = f32::new(0.0);
                        #[unroll]
                        for query in 0..4usize {
                            sum += weights[query * 4 + own];
                        }
                        let sum = over_lanes(sum);
                        let mean = sum / count.max(1.0);
                        #[unroll]
                        for query in 0..4usize {
                            let apart = weights[query * 4 + own] - mean;
                            let square = apart * apart;
                            within[own] += select(factors[query] != 0.0, square, 0.0);
                        }
                        // What two sets deviate from the mean of both.
                        let apart = mean - sums_before[own] / before.max(1.0);
                        let both = (before + count).max(1.0);
                        between[own] += apart * apart * before * count / both;
                        sums_before[own] += sum;
                    }
                    before += count;
                }
                if comptime!(scatter) {
                    #[unroll]
                    for own in 0..4usize {
                        #[unroll]
                        for query in 0..4usize {
                            let weight = weights[query * 4 + own];
                            scattered[own] -= weight * (weight + EPSILON).ln();
                        }
                    }
                }
            }

            if comptime!(!single) {
                // Each lane of a key's four writes another key.
                let column = base + quad * 8 + line;
                #[unroll]
                for own in 0..4usize {
                    sums[own] = over_lanes(sums[own]);
                    if comptime!(deviate) {
                        within[own] = over_lanes(within[own]) + between[own];
                    }
                    if comptime!(scatter) {
                        scattered[own] = over_lanes(scattered[own]);
                    }
                }
                let (sum, squares) = (own_of(&sums), own_of(&within));
                let entropy = own_of(&scattered);
                if column < entries {
                    let place = batch * first.stride(0) + of_query + column;
                    first[place] = sum;
                    if comptime!(deviate) {
                        let place = batch * deviations.stride(0)
                            + query_head * deviations.stride(1)
                            + column;
                        deviations[place] = squares;
                    }
                    if comptime!(scatter) {
                        let place =
                            batch * entropies.stride(0) + query_head * entropies.stride(1) + column;
                        entropies[place] = entropy;
                    }
                }
            }
        }
        tile += PLANES;
    }
}
