//! Parts of the decode kernels on tensor cores: each plane of a cube takes 16 tokens at a time, for
//! up to 8 query heads of one kv head.
//!
//! Queries are the rows of the first product, of which the other half is empty: its sums then lie
//! in registers as the second product, of values turned over with weights, wants them. That one has
//! its channels as rows, so that none of its sums are empty.

use cubecl::prelude::*;

use crate::common::{
    line::StridedSlice,
    masked::MASKED,
    tile::mma::{CHUNK, Chunk, Pair, SLACK, accumulators, definition, zeros},
};

/// Query heads of a cube.
pub(crate) const HEADS: usize = 8;
/// Tokens of a tile.
pub(crate) const TILE: usize = 16;

/// What the planes of a cube write.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct PlaneOutputs<E: CubePrimitive> {
    /// Scores at first, `[batch, query_heads, columns]`.
    pub(crate) weights: OwnedTensor<f32>,
    pub(crate) parts: OwnedTensor<f32>,
    pub(crate) output: OwnedTensor<E>,
}

/// Up to [`HEADS`] query heads of one kv head, of which a cube has a part of the tokens.
#[derive(CubeType)]
pub(crate) struct PlaneCube {
    pub(crate) batch: usize,
    pub(crate) kv_head: usize,
    /// Index of the kv head among those of all batch rows.
    pub(crate) kv: usize,
    pub(crate) first_head: usize,
    /// Query heads of the kv head from the first on.
    pub(crate) heads_left: usize,
    pub(crate) part: usize,
    pub(crate) weight_start: usize,
    pub(crate) query_start: usize,
}

/// The heads and the part of this cube.
#[cube]
pub(crate) fn plane_cube<E: Float>(
    queries: &Tensor<E>,
    weights: &Tensor<f32>,
    kv_heads: usize,
) -> PlaneCube {
    let group = queries.shape(1) / kv_heads;
    let blocks = group.div_ceil(HEADS);
    let kv_head = CUBE_POS_Y as usize / blocks;
    let block = CUBE_POS_Y as usize % blocks * HEADS;
    let first_head = kv_head * group + block;
    let batch = CUBE_POS_Z as usize;
    let part = CUBE_POS_X as usize;
    PlaneCube {
        batch,
        kv_head,
        kv: batch * kv_heads + kv_head,
        first_head,
        heads_left: group - block,
        part,
        weight_start: batch * weights.stride(0) + first_head * weights.stride(1),
        query_start: batch * queries.stride(0) + first_head * queries.stride(1),
    }
}

/// Sums of a plane so far.
#[derive(CubeType)]
pub(crate) struct PlaneSums {
    /// Score that the weights of the lane's head are relative to, and the lane's part of their sum.
    pub(crate) extremes: Array<f32>,
    /// Weighted values, by pairs of heads: `[head_dim / 16]`.
    pub(crate) values: Sequence<Array<Pair<f32>>>,
}

#[cube]
pub(crate) fn new_plane_sums(#[comptime] head_dim: usize) -> PlaneSums {
    let mut extremes = Array::<f32>::new(2usize);
    extremes[0] = f32::new(MASKED);
    extremes[1] = f32::new(0.0);
    PlaneSums { extremes, values: accumulators(comptime!(head_dim / 16)) }
}

/// Pair of two numbers.
#[cube]
pub(crate) fn pair<E: Float>(left: E, right: E) -> Pair<E> {
    let mut pair = Pair::<E>::empty();
    pair.insert(0usize, left);
    pair.insert(1usize, right);
    pair
}

/// Loads the queries of the heads of a cube, two registers for 16 channels, in the order in which
/// the loads of a key come, of `run` channels each: lane `quad` of four has loads `quad`,
/// `4 + quad` and so on.
#[cube]
pub(crate) fn plane_queries<E: Float>(
    queries: &Tensor<E>,
    cube: &PlaneCube,
    #[comptime] head_dim: usize,
    #[comptime] run: usize,
) -> Array<Pair<E>> {
    let lane = UNIT_POS_PLANE as usize;
    let line = lane / 4;
    let quad = lane % 4;
    let next = queries.stride(3);
    let mut own = Array::<Pair<E>>::new(comptime!(head_dim / 8));
    #[unroll]
    for register in 0..comptime!(head_dim / 8) {
        let mut two = Pair::<E>::new(E::new(0.0));
        if line < cube.heads_left {
            let load = comptime!(register / (run / 2) * 4);
            let channel = (load + quad) * run + comptime!(register % (run / 2) * 2);
            let place = cube.query_start + line * queries.stride(1) + channel * next;
            two = pair::<E>(queries[place], queries[place + next]);
        }
        own[register] = two;
    }
    own
}

/// Adds to the scores of the queries with 8 keys the products of 16 channels: those of the queries
/// from register `first` on.
#[cube]
pub(crate) fn add_products<E: Float>(
    queries: &Array<Pair<E>>,
    keys: &Array<Pair<E>>,
    scores: &mut Array<Pair<f32>>,
    #[comptime] first: usize,
    #[comptime] first_key: usize,
) {
    let mut a = Array::<Pair<E>>::new(4usize);
    a[0] = queries[first];
    a[1] = Pair::<E>::new(E::new(0.0));
    a[2] = queries[first + 1];
    a[3] = Pair::<E>::new(E::new(0.0));
    let mut b = Array::<Pair<E>>::new(2usize);
    b[0] = keys[first_key];
    b[1] = keys[first_key + 1];
    definition::<E>().execute_inplace(&a, &b, scores);
}

/// Products of the queries with 8 keys, of which the lane has the chunks of key `line` in their
/// order: register 0 has those of query `line` with keys `2 · quad` and the next.
#[cube]
pub(crate) fn plane_scores<E: Float>(
    queries: &Array<Pair<E>>,
    keys: &Array<Pair<E>>,
    #[comptime] first: usize,
    #[comptime] head_dim: usize,
) -> Array<Pair<f32>> {
    let mut score = zeros();
    #[unroll]
    for step in 0..comptime!(head_dim / 16) {
        let own = comptime!(step * 2);
        add_products::<E>(queries, keys, &mut score, own, comptime!(first + own));
    }
    score
}

/// Turns the scores of a tile, two of tokens below 8 and two of the others, into weights; those of
/// [`MASKED`] scores are zero. Weights are relative to a score of the head at most [`SLACK`] below
/// its highest so far.
#[cube]
pub(crate) fn plane_weights<E: Float>(
    scores: &Array<Pair<f32>>,
    sums: &mut PlaneSums,
    #[comptime] head_dim: usize,
) -> Array<Pair<E>> {
    let quad = UNIT_POS_PLANE % 4;
    let mut most = scores[0].extract(0usize).max(scores[0].extract(1usize));
    most = most.max(scores[1].extract(0usize).max(scores[1].extract(1usize)));
    most = most.max(plane_shuffle_xor(most, 1));
    most = most.max(plane_shuffle_xor(most, 2));
    if plane_any(most - sums.extremes[0] > SLACK) {
        let highest = most.max(sums.extremes[0]);
        let kept = (sums.extremes[0] - highest).exp();
        sums.extremes[0] = highest;
        sums.extremes[1] *= kept;
        // The heads of the lane's sums are those of other lanes' scores.
        let two = pair::<f32>(plane_shuffle(kept, quad * 8), plane_shuffle(kept, quad * 8 + 4));
        #[unroll]
        for place in 0..comptime!(head_dim / 16) {
            let sum = &mut sums.values[place];
            sum[0] *= two;
            sum[1] *= two;
        }
    }
    let mut weights = Array::<Pair<E>>::new(2usize);
    #[unroll]
    for eight in 0..2usize {
        let left = scores[eight].extract(0usize);
        let right = scores[eight].extract(1usize);
        let left = select(left == MASKED, 0.0, (left - sums.extremes[0]).exp());
        let right = select(right == MASKED, 0.0, (right - sums.extremes[0]).exp());
        sums.extremes[1] += left + right;
        weights[eight] = Pair::<E>::cast_from(pair::<f32>(left, right));
    }
    weights
}

/// Adds the values of a tile. The lane has the chunks `line`, `8 + line` and so on of tokens
/// `2 · quad`, the next, and both 8 further.
#[cube]
pub(crate) fn add_plane_values<E: Float>(
    values: &Array<Chunk<E>>,
    weights: &Array<Pair<E>>,
    sums: &mut PlaneSums,
    #[comptime] head_dim: usize,
) {
    #[unroll]
    for place in 0..comptime!(head_dim / 16) {
        let mut a = Array::<Pair<E>>::new(4usize);
        #[unroll]
        for register in 0..4usize {
            let first = comptime!(place / 4 * 4 + register / 2 * 2);
            let channel = comptime!(place % 4 * 2 + register % 2);
            a[register] =
                pair::<E>(values[first].extract(channel), values[first + 1].extract(channel));
        }
        definition::<E>().execute_inplace(&a, weights, &mut sums.values[place]);
    }
}

/// Adds up the sums of the planes of a cube in order, and writes them as one part of each head, or
/// as its output where there is but one part. Each line of a plane has `run` of every `8 · run`
/// channels.
#[cube]
pub(crate) fn write_planes<E: Float>(
    outputs: &mut PlaneOutputs<E>,
    sums: &PlaneSums,
    cube: &PlaneCube,
    #[comptime] head_dim: usize,
    #[comptime] run: usize,
    #[comptime] planes: usize,
    #[comptime] whole: bool,
) {
    let unit = UNIT_POS as usize;
    let plane = unit / 32;
    let lane = UNIT_POS_PLANE as usize;
    let line = lane / 4;
    let quad = lane % 4;
    // Spreads what a plane writes at once over the banks.
    let pitch = comptime!(head_dim + 4);
    let mut stage = Shared::<[f32]>::new_slice(comptime!(planes * HEADS * pitch));
    let mut extremes = Shared::<[f32]>::new_slice(comptime!(planes * HEADS * 2));
    let mut shares = Shared::<[f32]>::new_slice(comptime!(planes * HEADS));
    let mut sum = sums.extremes[1];
    sum += plane_shuffle_xor(sum, 1);
    sum += plane_shuffle_xor(sum, 2);
    if quad == 0 {
        let row = plane * HEADS + line;
        extremes[row * 2] = sums.extremes[0];
        extremes[row * 2 + 1] = sum;
    }
    #[unroll]
    for side in 0..2usize {
        let row = quad * 2 + side;
        if row < cube.heads_left {
            #[unroll]
            for place in 0..comptime!(head_dim / 16) {
                #[unroll]
                for register in 0..2usize {
                    let channel = comptime!(place * 2 + register) * CHUNK + line;
                    stage[(plane * HEADS + row) * pitch + channel] =
                        sums.values[place][register].extract(side);
                }
            }
        }
    }
    sync_cube();
    if unit < comptime!(planes * HEADS) {
        let row = unit % HEADS;
        let mut most = f32::new(MASKED);
        #[unroll]
        for plane in 0..planes {
            most = most.max(extremes[(plane * HEADS + row) * 2]);
        }
        shares[unit] = (extremes[unit * 2] - most).exp();
    }
    sync_cube();
    let width = comptime!(if whole { head_dim } else { head_dim + 2 });
    let heads = cube.heads_left.min(HEADS);
    let mut index = unit;
    while index < heads * width {
        let row = index / width;
        let channel = index % width;
        let at = channel / (8 * run) * (8 * run) + channel % run * 8 + channel / run % 8;
        let mut most = f32::new(MASKED);
        let mut total = f32::new(0.0);
        let mut sum = f32::new(0.0);
        #[unroll]
        for plane in 0..planes {
            let from = plane * HEADS + row;
            let share = shares[from];
            most = most.max(extremes[from * 2]);
            total += share * extremes[from * 2 + 1];
            if channel < head_dim {
                sum += share * stage[from * pitch + at];
            }
        }
        if comptime!(whole) {
            // A head that sees nothing has the sum zero.
            let mean = select(total == 0.0, 0.0, sum / total);
            let output = &mut outputs.output;
            let place = cube.batch * output.stride(0)
                + (cube.first_head + row) * output.stride(1)
                + channel * output.stride(3);
            output[place] = E::cast_from(mean);
        } else {
            let parts = &mut outputs.parts;
            let line = cube.batch * outputs.output.shape(1) + cube.first_head + row;
            let place =
                line * parts.stride(0) + cube.part * parts.stride(1) + channel * parts.stride(2);
            let extreme = select(channel == head_dim, total, most);
            parts[place] = select(channel < head_dim, sum, extreme);
        }
        index += comptime!(planes * 32);
    }
}

/// Turns the scores of the heads of a cube, which its planes have written, into weights, where the
/// cube has all of them. `weights` are `[batch, query_heads, columns]`.
#[cube]
pub(crate) fn weigh_scores(
    weights: &mut Tensor<f32>,
    cube: &PlaneCube,
    sums: &PlaneSums,
    columns: usize,
    #[comptime] planes: usize,
) {
    let unit = UNIT_POS as usize;
    let lane = UNIT_POS_PLANE as usize;
    let mut extremes = Shared::<[f32]>::new_slice(comptime!(planes * HEADS * 2));
    let mut sum = sums.extremes[1];
    sum += plane_shuffle_xor(sum, 1);
    sum += plane_shuffle_xor(sum, 2);
    let (line, quad) = (lane / 4, lane % 4);
    if quad == 0 {
        let row = unit / 32 * HEADS + line;
        extremes[row * 2] = sums.extremes[0];
        extremes[row * 2 + 1] = sum;
    }
    // All units see the scores that others have written.
    sync_storage();
    sync_cube();
    for head in 0..cube.heads_left.min(HEADS) {
        let (most, total) = together(&extremes, head, HEADS, planes);
        // A head that sees nothing has the sum zero.
        let factor = select(total == 0.0, 0.0, 1.0 / total);
        let start = cube.weight_start + head * weights.stride(1);
        let row = StridedSlice { start, stride: weights.stride(2) };
        weigh_row(weights, &row, columns, most, factor, comptime!(planes * 32));
    }
}

/// Highest score of a row over all planes, of `rows` each, and the sum of its weights relative to
/// it. `extremes` has both of each plane and row.
#[cube]
pub(crate) fn together(
    extremes: &Shared<[f32]>,
    row: usize,
    #[comptime] rows: usize,
    #[comptime] planes: usize,
) -> (f32, f32) {
    let mut most = f32::new(MASKED);
    #[unroll]
    for plane in 0..planes {
        most = most.max(extremes[(plane * rows + row) * 2]);
    }
    let mut sum = f32::new(0.0);
    #[unroll]
    for plane in 0..planes {
        let from = (plane * rows + row) * 2;
        sum += (extremes[from] - most).exp() * extremes[from + 1];
    }
    (most, sum)
}

/// Scores that a unit loads before it writes the first of them as a weight.
const AHEAD: usize = 8;

/// Turns the scores of a row into weights, with all units of a cube.
#[cube]
pub(crate) fn weigh_row(
    weights: &mut Tensor<f32>,
    row: &StridedSlice,
    columns: usize,
    most: f32,
    factor: f32,
    #[comptime] units: usize,
) {
    let mut first = UNIT_POS as usize;
    while first < columns {
        let mut own = Array::<f32>::new(AHEAD);
        #[unroll]
        for ahead in 0..AHEAD {
            // Behind the last column, that one.
            own[ahead] = weights[row.at((first + ahead * units).min(columns - 1))];
        }
        #[unroll]
        for ahead in 0..AHEAD {
            let column = first + ahead * units;
            if column < columns {
                weights[row.at(column)] = (own[ahead] - most).exp() * factor;
            }
        }
        first += comptime!(AHEAD * units);
    }
}
