use cubecl::prelude::*;

use crate::common::{
    eviction::{
        head::{Head, head_of, index, is_entry, number, position},
        limits::of_token,
        weakest::{UNITS, of_cube, protected, weakest},
    },
    line::{at, write},
    vector::dot,
};

/// Numbers of a head and token in a table: last tokens that stay, and 1 where a free slot is taken.
pub(super) const NUMBERS: usize = 2;

/// Units that compare a row together.
const LANES: usize = 16;
/// Rows that are compared at once.
pub(super) const ROWS: usize = UNITS / LANES * AHEAD;
/// Rows that a unit loads before it looks at the first of them.
const AHEAD: usize = 4;

/// The numbers of first and of last tokens that stay, and whether the new token takes a free slot
/// (1 or 0): the same of all heads, unless they `differ`.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Bounds {
    sinks: usize,
    recent: usize,
    takes_free: usize,
    #[cube(comptime)]
    differ: bool,
}

/// The numbers of [`Bounds`] of a head, at the token whose position is `newest`.
#[cube]
fn limits_of<I: Int>(
    limits: &Tensor<I>,
    list: usize,
    newest: usize,
    bounds: &Bounds,
) -> (usize, usize, usize) {
    let mut all = (bounds.sinks, bounds.recent, bounds.takes_free);
    if comptime!(bounds.differ) {
        let step = limits.stride(1);
        let of_token = of_token::<I>(limits, list, newest, NUMBERS);
        all = (
            usize::cast_from(limits[list * limits.stride(0) + step]),
            usize::cast_from(limits[of_token]),
            usize::cast_from(limits[of_token + step]),
        );
    }
    all
}

/// The number of the last free slot of a head, its column and one more; zero if it has none.
#[cube]
fn last_free_slot<I: Int>(positions: &Tensor<I>, head: &Head, shared: &mut Shared<[u32]>) -> usize {
    let mut found = 0u32;
    let mut column = head.first + UNIT_POS as usize;
    while column < head.newest {
        if !is_entry::<I>(positions, head, column) {
            found = u32::cast_from(column) + 1;
        }
        column += UNITS;
    }
    of_cube(shared, found, false) as usize
}

/// The column of the entry that goes, or of the free slot that the new token takes, in a head of a
/// list.
#[cube]
pub(super) fn goes<I: Int>(
    positions: &Tensor<I>,
    new_positions: &Tensor<I>,
    scores: &Tensor<f32>,
    limits: &Tensor<I>,
    bounds: &Bounds,
    head: &Head,
    list: usize,
) -> usize {
    let newest = position::<I>(positions, new_positions, head, head.newest);
    let (sinks, recent, takes_free) = limits_of::<I>(limits, list, newest, bounds);
    let mut shared = Shared::<[u32]>::new_slice(UNITS);
    let mut slot = 0usize.runtime();
    if comptime!(head.has_free_slots) && takes_free > 0 {
        slot = last_free_slot::<I>(positions, head, &mut shared);
    }
    if slot == 0 {
        let protected = protected::<I>(positions, new_positions, head, sinks, recent, &mut shared);
        slot = 1 + weakest::<I>(positions, new_positions, scores, head, &protected, &mut shared);
    }
    slot - 1
}

/// Puts the position of the new token where that of `gone` is.
#[cube]
fn move_position<I: Int>(
    positions: &mut Tensor<I>,
    new_positions: &Tensor<I>,
    head: &Head,
    gone: usize,
) {
    if UNIT_POS == 0 && gone < head.newest {
        let newest = position::<I>(&*positions, new_positions, head, head.newest);
        write::<I>(positions, head.batch, head.head, gone, I::cast_from(newest));
    }
}

/// Writes the new statistics of a head, those of the new token where those of `gone` are. `parts`
/// cubes share the work; this one is number `part`.
#[cube]
#[allow(clippy::too_many_arguments)]
fn move_statistics(
    statistics: &mut Tensor<f32>,
    counted: &Tensor<f32>,
    scores: &Tensor<f32>,
    head: &Head,
    gone: usize,
    part: usize,
    parts: usize,
) {
    let (batches, heads) = (scores.shape(0), scores.shape(1));
    let group = counted.shape(1) / heads;
    let numbers = counted.shape(0) / batches * group;
    let width = head.newest;
    let mut place = part * UNITS + UNIT_POS as usize;
    while place < numbers * width {
        let (of, column) = (place / width, place % width);
        let (row, of_head) = (of / group * batches + head.batch, head.head * group + of % group);
        let from = select(column == gone, head.newest, column);
        let number = counted[at::<f32>(counted, row, of_head, from)];
        write::<f32>(statistics, row, of_head, column, number);
        place += parts * UNITS;
    }
}

/// See [`super::evict`]. A cube a head.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn evict<E: Float, I: Int>(
    keys: &mut Tensor<E>,
    values: &mut Tensor<E>,
    positions: &mut Tensor<I>,
    statistics: &mut Tensor<f32>,
    counted: &Tensor<f32>,
    scores: &Tensor<f32>,
    offsets: &Tensor<I>,
    new_keys: &Tensor<E>,
    new_values: &Tensor<E>,
    new_positions: &Tensor<I>,
    limits: &Tensor<I>,
    channels: usize,
    bounds: &Bounds,
    #[comptime] is_ragged: bool,
    #[comptime] is_tracked: bool,
    #[comptime] has_free_slots: bool,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let list = CUBE_POS;
    if list >= scores.shape(0) * scores.shape(1) {
        terminate!();
    }
    let head = head_of::<I>(scores, offsets, list, is_ragged, has_free_slots);
    let gone = goes::<I>(&*positions, new_positions, scores, limits, bounds, &head, list);
    if gone < head.newest {
        let mut channel = UNIT_POS as usize;
        while channel < channels {
            let key = number::<E>(&*keys, new_keys, &head, head.newest, channel);
            let value = number::<E>(&*values, new_values, &head, head.newest, channel);
            let to_key = index::<E>(&*keys, &head, gone, channel);
            let to_value = index::<E>(&*values, &head, gone, channel);
            keys[to_key] = key;
            values[to_value] = value;
            channel += UNITS;
        }
    }
    move_position::<I>(positions, new_positions, &head, gone);
    if comptime!(is_tracked) {
        move_statistics(statistics, counted, scores, &head, gone, 0, 1);
    }
}

/// The similarity where no entry goes: no cosine is as low.
const NONE_GOES: f32 = -2.0;

/// Finds the entry of each head that goes and, in each of `parts` parts of the head, the one with
/// the most similar key; moves the statistics. A cube a part.
///
/// Writes `places`, `[batch, heads, 1 + 2 · parts]`: the column of the entry that goes, then the
/// column and the position of the most similar of each part; and `similarity`,
/// `[batch, heads, parts]`.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn find<E: Float, I: Int, N: Size>(
    keys: &Tensor<Vector<E, N>>,
    positions: &Tensor<I>,
    scores: &Tensor<f32>,
    offsets: &Tensor<I>,
    new_keys: &Tensor<Vector<E, N>>,
    new_positions: &Tensor<I>,
    limits: &Tensor<I>,
    statistics: &mut Tensor<f32>,
    counted: &Tensor<f32>,
    places: &mut Tensor<I>,
    similarity: &mut Tensor<f32>,
    bounds: &Bounds,
    parts: usize,
    #[comptime] vectors: usize,
    #[comptime] width: usize,
    #[comptime] is_ragged: bool,
    #[comptime] is_tracked: bool,
    #[comptime] has_free_slots: bool,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let unit = UNIT_POS as usize;
    let (list, part) = (CUBE_POS / parts, CUBE_POS % parts);
    if list >= scores.shape(0) * scores.shape(1) {
        terminate!();
    }
    let head = head_of::<I>(scores, offsets, list, is_ragged, has_free_slots);
    let gone = goes::<I>(positions, new_positions, scores, limits, bounds, &head, list);
    if comptime!(is_tracked) {
        move_statistics(statistics, counted, scores, &head, gone, part, parts);
    }

    let (lane, place) = (unit % LANES, unit / LANES);
    let mut products = Shared::<[f32]>::new_slice(comptime!(ROWS * LANES));
    let mut squares = Shared::<[f32]>::new_slice(comptime!(ROWS * LANES));
    // The row that goes stays in registers, a share of it in each lane.
    let steps = comptime!(vectors.div_ceil(LANES));
    let mut own = Array::<Vector<f32, N>>::new(steps);
    let mut square = f32::new(0.0);
    #[unroll]
    for step in 0..steps {
        let vector = (lane + step * LANES).min(vectors - 1);
        own[step] = vector_of::<E, N>(keys, new_keys, &head, gone, vector, width);
        if lane + step * LANES < vectors {
            square += dot::<N>(own[step], own[step], width);
        }
    }
    squares[unit] = square;
    sync_cube();
    let mut own_square = f32::new(0.0);
    for lane in 0..LANES {
        own_square += squares[lane];
    }
    sync_cube();
    let mut best = f32::new(NONE_GOES);
    let mut oldest = 0usize.runtime();
    let mut target = 0usize.runtime();
    // Parts have tiles in turn. Where the new token takes a free slot no entry goes.
    let evicts = is_entry::<I>(positions, &head, gone);
    let mut tile = select(evicts, head.first + part * ROWS, head.newest + 1);
    while tile <= head.newest {
        #[unroll]
        for ahead in 0..AHEAD {
            let row = place + comptime!(ahead * (UNITS / LANES));
            let column = (tile + row).min(head.newest);
            let mut product = f32::new(0.0);
            let mut square = f32::new(0.0);
            #[unroll]
            for step in 0..steps {
                let vector = lane + step * LANES;
                if vector < vectors {
                    let other = vector_of::<E, N>(keys, new_keys, &head, column, vector, width);
                    product += dot::<N>(own[step], other, width);
                    square += dot::<N>(other, other, width);
                }
            }
            products[row * LANES + lane] = product;
            squares[row * LANES + lane] = square;
        }
        sync_cube();
        let column = tile + unit;
        let is_other = column <= head.newest && column != gone;
        if unit < ROWS && is_other && is_entry::<I>(positions, &head, column) {
            let mut product = f32::new(0.0);
            let mut square = f32::new(0.0);
            #[unroll]
            for lane in 0..LANES {
                product += products[unit * LANES + lane];
                square += squares[unit * LANES + lane];
            }
            let mut like = f32::new(0.0);
            if square > f32::new(0.0) && own_square > f32::new(0.0) {
                like = (product / (square.sqrt() * own_square.sqrt())).min(f32::new(1.0));
            }
            let own = position::<I>(positions, new_positions, &head, column);
            if like > best || (like == best && own < oldest) {
                best = like;
                oldest = own;
                target = column;
            }
        }
        sync_cube();
        tile += parts * ROWS;
    }
    // The first units have looked at rows.
    let mut bests = Shared::<[f32]>::new_slice(ROWS);
    let mut ages = Shared::<[u32]>::new_slice(ROWS);
    let mut columns = Shared::<[u32]>::new_slice(ROWS);
    if unit < ROWS {
        bests[unit] = best;
        ages[unit] = u32::cast_from(oldest);
        columns[unit] = u32::cast_from(target);
    }
    sync_cube();
    #[unroll]
    for step in 0..comptime!(ROWS.ilog2()) {
        take_oldest_best(&mut bests, &mut ages, &mut columns, comptime!(ROWS >> (step + 1)));
    }
    if unit == 0 {
        let (like, age, column) = (bests[0], ages[0], columns[0]);
        write::<f32>(similarity, head.batch, head.head, part, like);
        write::<I>(places, head.batch, head.head, 1 + 2 * part, I::cast_from(column));
        write::<I>(places, head.batch, head.head, 2 + 2 * part, I::cast_from(age));
        if part == 0 {
            write::<I>(places, head.batch, head.head, 0, I::cast_from(gone));
        }
    }
}

/// A vector of a column's key.
#[cube]
fn vector_of<E: Float, N: Size>(
    keys: &Tensor<Vector<E, N>>,
    new_keys: &Tensor<Vector<E, N>>,
    head: &Head,
    column: usize,
    vector: usize,
    #[comptime] width: usize,
) -> Vector<f32, N> {
    let channel = vector * width;
    let found = if comptime!(head.is_ragged) {
        let row = at::<Vector<E, N>>(new_keys, head.batch, head.head, 0);
        let mut found = new_keys[(row + channel * new_keys.stride(3)) / width];
        if column < head.newest {
            found = keys[index::<Vector<E, N>>(keys, head, column, channel) / width];
        }
        found
    } else {
        keys[index::<Vector<E, N>>(keys, head, column, channel) / width]
    };
    Vector::cast_from(found)
}

/// The highest similarity of a head's parts, and the column of the entry that has it: of equal ones
/// the oldest. A unit a part; all units return the same.
#[cube]
fn most_similar<I: Int>(
    similarity: &Tensor<f32>,
    places: &Tensor<I>,
    batch: usize,
    head: usize,
) -> (f32, usize) {
    let unit = UNIT_POS as usize;
    let mut bests = Shared::<[f32]>::new_slice(UNITS);
    let mut ages = Shared::<[u32]>::new_slice(UNITS);
    let mut columns = Shared::<[u32]>::new_slice(UNITS);
    let mut best = f32::new(NONE_YET);
    let mut oldest = 0u32;
    let mut target = 0u32;
    let mut part = unit;
    while part < similarity.shape(2) {
        let like = similarity[at::<f32>(similarity, batch, head, part)];
        let age = u32::cast_from(places[at::<I>(places, batch, head, 2 + 2 * part)]);
        if like > best || (like == best && age < oldest) {
            best = like;
            oldest = age;
            target = u32::cast_from(places[at::<I>(places, batch, head, 1 + 2 * part)]);
        }
        part += UNITS;
    }
    bests[unit] = best;
    ages[unit] = oldest;
    columns[unit] = target;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(UNITS.ilog2()) {
        take_oldest_best(&mut bests, &mut ages, &mut columns, comptime!(UNITS >> (step + 1)));
    }
    (bests[0], columns[0] as usize)
}

/// A step of the search for the highest similarity, of equal ones the oldest: each of the first
/// `distance` units takes that of the unit so far behind it, if it is better.
#[cube]
fn take_oldest_best(
    bests: &mut Shared<[f32]>,
    ages: &mut Shared<[u32]>,
    columns: &mut Shared<[u32]>,
    #[comptime] distance: usize,
) {
    let unit = UNIT_POS as usize;
    if unit < distance {
        let (like, age) = (bests[unit + distance], ages[unit + distance]);
        if like > bests[unit] || (like == bests[unit] && age < ages[unit]) {
            let column = columns[unit + distance];
            bests[unit] = like;
            ages[unit] = age;
            columns[unit] = column;
        }
    }
    sync_cube();
}

/// The mean of the similarities of a batch row's heads, of those that evict, summed in the order of
/// the heads, and how many they are. A unit a head; all units return the same.
#[cube]
fn mean_similarity(similarity: &Tensor<f32>, batch: usize) -> (f32, usize) {
    let unit = UNIT_POS as usize;
    let heads = similarity.shape(1);
    let mut bests = Shared::<[f32]>::new_slice(UNITS);
    let mut sum = f32::new(0.0);
    let mut evict = 0usize.runtime();
    let mut first = 0usize.runtime();
    while first < heads {
        let mut best = f32::new(NONE_GOES);
        if first + unit < heads {
            for part in 0..similarity.shape(2) {
                best = best.max(similarity[at::<f32>(similarity, batch, first + unit, part)]);
            }
        }
        bests[unit] = best;
        sync_cube();
        for other in 0..(heads - first).min(UNITS) {
            let like = bests[other];
            if like > f32::new(NONE_GOES) {
                sum += like;
                evict += 1;
            }
        }
        sync_cube();
        first += UNITS;
    }
    (sum / f32::cast_from(evict.max(1)), evict)
}

/// The threshold of a row that has evicted nothing so far: no cosine is as low.
const NONE_YET: f32 = -4.0;

/// Merges the entries that go where they are similar enough, and puts the new tokens in their
/// place. A cube a head.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn merge<E: Float, I: Int>(
    keys: &mut Tensor<E>,
    values: &mut Tensor<E>,
    positions: &mut Tensor<I>,
    places: &Tensor<I>,
    similarity: &Tensor<f32>,
    before: &Tensor<f32>,
    threshold: &mut Tensor<f32>,
    offsets: &Tensor<I>,
    new_keys: &Tensor<E>,
    new_values: &Tensor<E>,
    new_positions: &Tensor<I>,
    scores: &Tensor<f32>,
    channels: usize,
    beta: f32,
    #[comptime] follows: bool,
    #[comptime] is_ragged: bool,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let list = CUBE_POS;
    let heads = scores.shape(1);
    if list >= scores.shape(0) * heads {
        terminate!();
    }
    let head = head_of::<I>(scores, offsets, list, is_ragged, false);
    let (mean, evict) = mean_similarity(similarity, head.batch);
    let mut held = f32::new(NONE_YET);
    if comptime!(follows) {
        held = before[head.batch * before.stride(0)];
    }
    let blend = select(held < NONE_YET / 2.0, mean, mean * beta + held * (1.0 - beta));
    // A row that evicts nothing keeps its threshold.
    let limit = select(evict == 0, held, blend);
    if UNIT_POS == 0 && head.head == 0 {
        let place = head.batch * threshold.stride(0);
        threshold[place] = limit;
    }
    let gone = usize::cast_from(places[at::<I>(places, head.batch, head.head, 0)]);
    let (like, target) = most_similar::<I>(similarity, places, head.batch, head.head);
    let merges = like >= limit && like > f32::new(NONE_GOES);
    let weight = like.exp();
    let mut channel = UNIT_POS as usize;
    while channel < channels {
        merge_channel::<E>(keys, new_keys, &head, gone, target, channel, weight, merges);
        merge_channel::<E>(values, new_values, &head, gone, target, channel, weight, merges);
        channel += UNITS;
    }
    move_position::<I>(positions, new_positions, &head, gone);
}

/// [`merge`] of a channel of the rows.
#[cube]
fn merge_channel<E: Float>(
    rows: &mut Tensor<E>,
    new_rows: &Tensor<E>,
    head: &Head,
    gone: usize,
    target: usize,
    channel: usize,
    weight: f32,
    merges: bool,
) {
    let own = f32::new(std::f32::consts::E);
    let mut newest = number::<E>(&*rows, new_rows, head, head.newest, channel);
    if merges {
        let from = f32::cast_from(number::<E>(&*rows, new_rows, head, gone, channel));
        let to = f32::cast_from(number::<E>(&*rows, new_rows, head, target, channel));
        let merged = E::cast_from((to * own + from * weight) / (own + weight));
        if target == head.newest {
            newest = merged;
        } else {
            let place = index::<E>(&*rows, head, target, channel);
            rows[place] = merged;
        }
    }
    if gone < head.newest {
        let place = index::<E>(&*rows, head, gone, channel);
        rows[place] = newest;
    }
}
