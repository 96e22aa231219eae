use cubecl::prelude::*;

use super::{
    geometry::{CubeSplit, SplitCounts, cube_split},
    operands::{ClusterArgs, KeyValues, RotaryArgs},
    softmax::{Running, UNITS},
};
use crate::{attention::scoring::ScoreArgs, common::masked::MASKED};

/// Values a unit loads before it waits for the first.
const AHEAD: usize = 4;

/// Compile-time parameters of [`rows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RowBlueprint {
    pub(crate) head_dim: usize,
    /// Query heads of a cube, which share its rows.
    pub(crate) heads: usize,
    /// Cubes that the query heads of one kv head need.
    pub(crate) blocks: usize,
    /// Whether keys are encoded as they are read.
    pub(crate) encoded: bool,
    /// Numbers of a vector.
    pub(crate) width: usize,
    /// Units that share the score of one row.
    pub(crate) lanes: usize,
    /// Vectors of a key per lane, of each half where keys are encoded.
    pub(crate) vectors: usize,
    /// Rows that are scored before their values are added.
    pub(crate) tile: usize,
    /// Units that share the values of one row.
    pub(crate) value_lanes: usize,
    /// Vectors of a value per lane.
    pub(crate) value_vectors: usize,
    /// Whether there are clusters, not a tail alone.
    pub(crate) by_cluster: bool,
    /// Whether weights are wanted.
    pub(crate) wanted: bool,
}

impl RowBlueprint {
    /// Number of halves that are rotated against each other.
    fn halves(&self) -> usize {
        1 + usize::from(self.encoded)
    }

    /// Number of vectors of one half.
    fn half(&self) -> usize {
        self.head_dim / self.halves() / self.width
    }

    /// Number of vectors of a row.
    fn row(&self) -> usize {
        self.head_dim / self.width
    }

    /// Number of rows whose values are added at once.
    fn value_rows(&self) -> usize {
        UNITS / self.value_lanes
    }

    /// Numbers from one row of parts of scores to the next. A lane's part lies beside that of the
    /// next lane; one place between rows spreads them over the banks of shared memory.
    fn pitch(&self) -> usize {
        self.lanes + 1
    }

    /// Size of the scratch that parts of scores and sums are put together in, in numbers.
    pub(super) fn scratch(&self) -> usize {
        let scores = self.heads * self.tile * self.pitch();
        scores.max(self.value_rows() * (self.head_dim + 1))
    }

    /// Size of the shared memory, in bytes.
    #[cfg(test)]
    pub(super) fn shared_bytes(&self) -> usize {
        4 * (self.scratch() + self.tile * (2 * self.heads + 5) + 8 * self.heads)
    }
}

/// Tile of rows in the shared memory of a cube.
#[derive(CubeType)]
struct RowTile {
    /// First vector of each row's key.
    key_at: Shared<[u32]>,
    /// Position that it is encoded at.
    position: Shared<[u32]>,
    /// Factor of its score.
    norm: Shared<[f32]>,
    /// Index of its value in the tile; rows that share one stand together.
    slot: Shared<[u32]>,
    /// Column of its weight.
    column: Shared<[u32]>,
    /// `[heads, tile]`
    scores: Shared<[f32]>,
    /// Sums of the weights of each slot, `[tile, heads]`.
    shares: Shared<[f32]>,
    scratch: Shared<[f32]>,
}

/// Sums of a cube so far.
#[derive(CubeType)]
struct Sums<N: Size> {
    running: Running,
    /// Values, `[heads, vectors of a value]` of the unit's lane.
    values: Array<Vector<f32, N>>,
    /// Sums of weights, one per head.
    weights: Array<f32>,
}

#[cube]
fn new_tile(#[comptime] blueprint: RowBlueprint) -> RowTile {
    RowTile {
        key_at: Shared::<[u32]>::new_slice(blueprint.tile),
        position: Shared::<[u32]>::new_slice(blueprint.tile),
        norm: Shared::<[f32]>::new_slice(blueprint.tile),
        slot: Shared::<[u32]>::new_slice(blueprint.tile),
        column: Shared::<[u32]>::new_slice(blueprint.tile),
        scores: Shared::<[f32]>::new_slice(comptime!(blueprint.heads * blueprint.tile)),
        shares: Shared::<[f32]>::new_slice(comptime!(blueprint.heads * blueprint.tile)),
        scratch: Shared::<[f32]>::new_slice(comptime!(blueprint.scratch())),
    }
}

#[cube]
fn new_sums<N: Size>(#[comptime] blueprint: RowBlueprint) -> Sums<N> {
    let mut values =
        Array::<Vector<f32, N>>::new(comptime!(blueprint.heads * blueprint.value_vectors));
    let mut weights = Array::<f32>::new(blueprint.heads);
    #[unroll]
    for index in 0..comptime!(blueprint.heads * blueprint.value_vectors) {
        values[index] = Vector::new(f32::new(0.0));
    }
    #[unroll]
    for head in 0..blueprint.heads {
        weights[head] = f32::new(0.0);
    }
    Sums::<N> { running: Running::new(blueprint.heads), values, weights }
}

/// Loads a unit's part of the queries of a cube, `[heads, halves, vectors]`.
#[cube]
fn own_queries<Q: Float, N: Size>(
    queries: &Tensor<Vector<Q, N>>,
    cube: &CubeSplit,
    scale: f32,
    #[comptime] blueprint: RowBlueprint,
) -> Array<Vector<f32, N>> {
    let lane = UNIT_POS as usize % blueprint.lanes;
    let halves = comptime!(blueprint.halves());
    let half = comptime!(blueprint.half());
    let start = cube.batch * queries.stride(0) + cube.query_head * queries.stride(1);
    let start = start / blueprint.width;
    let head_stride = queries.stride(1) / blueprint.width;
    let mut own =
        Array::<Vector<f32, N>>::new(comptime!(blueprint.heads * halves * blueprint.vectors));
    #[unroll]
    for head in 0..blueprint.heads {
        // The last cube of a kv head may have fewer: it works on one twice.
        let row = start + head.min(cube.heads_left - 1) * head_stride;
        #[unroll]
        for part in 0..halves {
            #[unroll]
            for vector in 0..blueprint.vectors {
                let at = lane + vector * blueprint.lanes;
                let mut query = Vector::<f32, N>::new(f32::new(0.0));
                if at < half {
                    query = Vector::cast_from(queries[row + part * half + at]);
                }
                own[comptime!((head * halves + part) * blueprint.vectors + vector)] =
                    query * Vector::new(scale);
            }
        }
    }
    own
}

/// Adds the product of two vectors to a sum, one number after another: a vector of sums would take
/// as many registers.
#[cube]
fn add_product<N: Size>(
    sum: f32,
    left: Vector<f32, N>,
    right: Vector<f32, N>,
    #[comptime] width: usize,
) -> f32 {
    let mut sum = sum;
    #[unroll]
    for index in 0..width {
        sum += left.extract(index) * right.extract(index);
    }
    sum
}

/// Writes the lane's part of the product of each query with the key of `row` to the scratch.
///
/// The key is turned, not the query: that costs 2 · head_dim operations for all query heads of the
/// cube, a turned query as much for each. Adding up products of pairs of channels first, and
/// weighing them by cosines and sines for each member, costs as much where a group has as many
/// query heads as an entry has members, and keeps twice as many sums alive.
#[cube]
fn score_row<K: Float, T: Float, I: Int, N: Size>(
    keys: &Tensor<Vector<K, N>>,
    rotary: &RotaryArgs<Vector<T, N>, I>,
    queries: &Array<Vector<f32, N>>,
    tile: &mut RowTile,
    row: usize,
    count: usize,
    #[comptime] blueprint: RowBlueprint,
) {
    let lane = UNIT_POS as usize % blueprint.lanes;
    let halves = comptime!(blueprint.halves());
    let half = comptime!(blueprint.half());
    // Rows behind the last are scored as the last, and not looked at.
    let seen = row.min(count - 1);
    let key = tile.key_at[seen] as usize;
    let mut sums = Array::<f32>::new(blueprint.heads);
    #[unroll]
    for head in 0..blueprint.heads {
        sums[head] = f32::new(0.0);
    }
    #[unroll]
    for vector in 0..blueprint.vectors {
        let at = lane + vector * blueprint.lanes;
        let mut there = true;
        if comptime!(blueprint.vectors * blueprint.lanes != half) {
            there = at < half;
        }
        if there {
            let low = Vector::<f32, N>::cast_from(keys[key + at]);
            if blueprint.encoded {
                let high = Vector::<f32, N>::cast_from(keys[key + half + at]);
                let position = tile.position[seen] as usize;
                let cosines = &rotary.cosines;
                let sines = &rotary.sines;
                let cosine = cosines[position * (cosines.stride(0) / blueprint.width) + at];
                let sine = sines[position * (sines.stride(0) / blueprint.width) + at];
                let cosine = Vector::<f32, N>::cast_from(cosine);
                let sine = Vector::<f32, N>::cast_from(sine);
                let turned_low = low * cosine - high * sine;
                let turned_high = high * cosine + low * sine;
                #[unroll]
                for head in 0..blueprint.heads {
                    let place = comptime!(head * halves * blueprint.vectors + vector);
                    let sum =
                        add_product::<N>(sums[head], queries[place], turned_low, blueprint.width);
                    let query = queries[comptime!(place + blueprint.vectors)];
                    sums[head] = add_product::<N>(sum, query, turned_high, blueprint.width);
                }
            } else {
                #[unroll]
                for head in 0..blueprint.heads {
                    let query = queries[comptime!(head * blueprint.vectors + vector)];
                    sums[head] = add_product::<N>(sums[head], query, low, blueprint.width);
                }
            }
        }
    }
    #[unroll]
    for head in 0..blueprint.heads {
        let place = (head * blueprint.tile + row) * comptime!(blueprint.pitch()) + lane;
        tile.scratch[place] = sums[head];
    }
}

/// Adds a tile of rows, whose descriptions all units have written, to the sums.
#[cube]
fn take_tile<K: Float, T: Float, I: Int, N: Size>(
    rows: &KeyValues<Vector<K, N>>,
    rotary: &RotaryArgs<Vector<T, N>, I>,
    weights: &mut Tensor<f32>,
    queries: &Array<Vector<f32, N>>,
    tile: &mut RowTile,
    sums: &mut Sums<N>,
    cube: &CubeSplit,
    count: usize,
    value_start: usize,
    value_stride: usize,
    scoring: &ScoreArgs,
    #[comptime] blueprint: RowBlueprint,
) {
    let unit = UNIT_POS as usize;
    let rows_at_once = comptime!(UNITS / blueprint.lanes);
    let pitch = comptime!(blueprint.pitch());
    // Two rows at a time: the loads of one need not wait for the other.
    let together = comptime!(if blueprint.tile >= 2 * rows_at_once { 2 } else { 1 });
    let mut first = unit / blueprint.lanes;
    while first < blueprint.tile {
        #[unroll]
        for index in 0..together {
            let row = first + index * rows_at_once;
            score_row::<K, T, I, N>(&rows.keys, rotary, queries, tile, row, count, blueprint);
        }
        first += comptime!(together * rows_at_once);
    }
    sync_cube();

    let mut index = unit;
    while index < comptime!(blueprint.heads * blueprint.tile) {
        let row = index % blueprint.tile;
        let head = index / blueprint.tile;
        if row < count {
            let mut score = f32::new(0.0);
            for lane in 0..blueprint.lanes {
                score += tile.scratch[index * pitch + lane];
            }
            score = scoring.capped(score * tile.norm[row]);
            tile.scores[index] = score;
            if blueprint.wanted && head < cube.heads_left {
                let column = tile.column[row] as usize * weights.stride(2);
                let place = cube.weight_start + head * weights.stride(1) + column;
                weights[place] = score;
            }
        }
        index += UNITS;
    }
    sync_cube();

    sums.running.take(&tile.scores, count, blueprint.heads, blueprint.tile);

    // Rows that share a value are added before the value is read.
    let mut index = unit;
    while index < comptime!(blueprint.heads * blueprint.tile) {
        let row = index % blueprint.tile;
        let head = index / blueprint.tile;
        if row < count {
            let slot = tile.slot[row];
            let mut begins = true;
            if row > 0 {
                begins = tile.slot[row - 1] != slot;
            }
            if begins {
                let highest = sums.running.highest_of(head, blueprint.heads);
                let mut share = f32::new(0.0);
                let mut next = row;
                let mut same = true;
                while same {
                    share += (tile.scores[head * blueprint.tile + next] - highest).exp();
                    next += 1;
                    same = false;
                    if next < count {
                        same = tile.slot[next] == slot;
                    }
                }
                tile.shares[slot as usize * blueprint.heads + head] = share;
            }
        }
        index += UNITS;
    }
    sync_cube();

    #[unroll]
    for head in 0..blueprint.heads {
        let kept = sums.running.kept[head];
        sums.weights[head] *= kept;
        #[unroll]
        for vector in 0..blueprint.value_vectors {
            let place = comptime!(head * blueprint.value_vectors + vector);
            sums.values[place] *= Vector::new(kept);
        }
    }
    let lane = unit % blueprint.value_lanes;
    let value_rows = comptime!(blueprint.value_rows());
    let row_vectors = comptime!(blueprint.row());
    let slots = tile.slot[count - 1] as usize + 1;
    let mut first = unit / blueprint.value_lanes;
    // Units behind the last whole row have nothing to add.
    if first >= value_rows {
        first = slots;
    }
    let ahead = comptime!(if blueprint.value_vectors == 1 { AHEAD } else { 1 });
    while first < slots {
        // All loads of a round, before any is waited for. Behind the last row they are that of the
        // last, not added.
        let mut held = Array::<Vector<K, N>>::new(comptime!(ahead * blueprint.value_vectors));
        #[unroll]
        for round in 0..ahead {
            let slot = (first + round * value_rows).min(slots - 1);
            #[unroll]
            for vector in 0..blueprint.value_vectors {
                // A lane behind the last vector reads that one, and writes nothing in the end.
                let at = (lane + vector * blueprint.value_lanes).min(row_vectors - 1);
                held[comptime!(round * blueprint.value_vectors + vector)] =
                    rows.values[value_start + slot * value_stride + at];
            }
        }
        #[unroll]
        for round in 0..ahead {
            let slot = first + round * value_rows;
            if slot < slots {
                #[unroll]
                for head in 0..blueprint.heads {
                    let share = tile.shares[slot * blueprint.heads + head];
                    sums.weights[head] += share;
                    #[unroll]
                    for vector in 0..blueprint.value_vectors {
                        let value = held[comptime!(round * blueprint.value_vectors + vector)];
                        let value = Vector::<f32, N>::cast_from(value);
                        let place = comptime!(head * blueprint.value_vectors + vector);
                        sums.values[place] += value * Vector::new(share);
                    }
                }
            }
        }
        first += comptime!(ahead * value_rows);
    }
}

/// Writes the sums of a cube: values, maxima and sums of weights.
#[cube]
fn write_sums<N: Size>(
    parts: &mut Tensor<f32>,
    tile: &mut RowTile,
    sums: &Sums<N>,
    cube: &CubeSplit,
    split: usize,
    query_heads: usize,
    #[comptime] blueprint: RowBlueprint,
) {
    let unit = UNIT_POS as usize;
    let lane = unit % blueprint.value_lanes;
    let slot = unit / blueprint.value_lanes;
    let value_rows = comptime!(blueprint.value_rows());
    let row_vectors = comptime!(blueprint.row());
    // One row of the scratch holds the values and the weight of one slot.
    let row = comptime!(blueprint.head_dim + 1);
    #[unroll]
    for head in 0..blueprint.heads {
        // The scratch is still read from.
        sync_cube();
        if slot < value_rows {
            #[unroll]
            for vector in 0..blueprint.value_vectors {
                let at = lane + vector * blueprint.value_lanes;
                if at < row_vectors {
                    let value = sums.values[comptime!(head * blueprint.value_vectors + vector)];
                    #[unroll]
                    for index in 0..blueprint.width {
                        tile.scratch[slot * row + at * blueprint.width + index] =
                            value.extract(index);
                    }
                }
            }
            if lane == 0 {
                tile.scratch[slot * row + blueprint.head_dim] = sums.weights[head];
            }
        }
        sync_cube();
        if head < cube.heads_left {
            let highest = sums.running.highest[head];
            let line = cube.batch * query_heads + cube.query_head + head;
            write_head(parts, &tile.scratch, highest, split, line, blueprint.head_dim, value_rows);
        }
    }
}

/// Adds up the rows of the scratch, `[rows, head_dim + 1]`, of which the last number is a sum of
/// weights, and writes them as one split of a head.
#[cube]
pub(crate) fn write_head(
    parts: &mut Tensor<f32>,
    scratch: &Shared<[f32]>,
    highest: f32,
    split: usize,
    head: usize,
    #[comptime] head_dim: usize,
    #[comptime] rows: usize,
) {
    let pitch = comptime!(head_dim + 1);
    let start = head * parts.stride(0) + split * parts.stride(1);
    let next = parts.stride(2);
    let mut channel = UNIT_POS as usize;
    while channel < pitch {
        let mut sum = f32::new(0.0);
        for row in 0..rows {
            sum += scratch[row * pitch + channel];
        }
        parts[start + channel * next] = sum;
        if channel == head_dim {
            parts[start + (channel + 1) * next] = highest;
        }
        channel += UNITS;
    }
}

/// Writes scores that become weights of zero to the padding columns of a head, which are the first.
#[cube]
pub(crate) fn fill_weights(
    weights: &mut Tensor<f32>,
    start: usize,
    heads_left: usize,
    padding: usize,
    #[comptime] heads: usize,
) {
    #[unroll]
    for head in 0..heads {
        if head < heads_left {
            let mut column = UNIT_POS as usize;
            while column < padding {
                let place = start + head * weights.stride(1) + column * weights.stride(2);
                weights[place] = f32::new(MASKED);
                column += UNITS;
            }
        }
    }
}

/// One split of one kv head, for up to `blueprint.heads` of its query heads: tokens in
/// the order of their clusters, and behind them the rows of a tail.
#[cube(launch)]
pub(super) fn rows<Q: Float, K: Float, T: Float, I: Int, N: Size>(
    queries: &Tensor<Vector<Q, N>>,
    clusters: &ClusterArgs<Vector<K, N>, I>,
    starts: &Tensor<I>,
    rotary: &RotaryArgs<Vector<T, N>, I>,
    tail_rows: &KeyValues<Vector<K, N>>,
    parts: &mut Tensor<f32>,
    weights: &mut Tensor<f32>,
    counts: &SplitCounts,
    columns: usize,
    tail: usize,
    chunk: usize,
    first_split: usize,
    scoring: &ScoreArgs,
    #[comptime] blueprint: RowBlueprint,
    #[define(Q, K, T, I)] _types: [ElemType; 4],
) {
    let unit = UNIT_POS as usize;
    let cube = cube_split(&*weights, counts, blueprint.heads, blueprint.blocks);
    let width = blueprint.width;

    let own = own_queries::<Q, N>(queries, &cube, scoring.scale, blueprint);
    let mut tile = new_tile(blueprint);
    let mut sums = new_sums::<N>(blueprint);

    let mut body = 0;
    let mut padding = 0;
    let mut first_row = 0;
    // Rows of the tail that are no entries of this head stand before those that are.
    let mut tail_first = 0;
    if blueprint.by_cluster {
        padding = usize::cast_from(starts[cube.kv * starts.stride(0)]);
        first_row = usize::cast_from(clusters.offsets[cube.kv * clusters.offsets.stride(0)]);
        body = columns - tail - padding;
    } else {
        tail_first = usize::cast_from(starts[cube.kv * starts.stride(0)]);
    }
    let total = body + tail - tail_first;
    let from = cube.split * chunk;
    let to = (from + chunk).min(total);

    let mut position_start = 0;
    if blueprint.encoded {
        position_start = cube.batch * rotary.positions.stride(0);
        if rotary.positions.shape(1) > 1 {
            position_start += cube.kv_head * rotary.positions.stride(1);
        }
    }
    if blueprint.by_cluster {
        if blueprint.wanted && cube.split == 0 {
            fill_weights(weights, cube.weight_start, cube.heads_left, padding, blueprint.heads);
        }
        let tokens_by_cluster = &clusters.tokens_by_cluster;
        let cluster_of_token = &clusters.cluster_of_token;
        let norms = &clusters.norms;
        let of_tokens = cube.batch * tokens_by_cluster.stride(0)
            + cube.kv_head * tokens_by_cluster.stride(1)
            + padding * tokens_by_cluster.stride(2);
        let of_clusters =
            cube.batch * cluster_of_token.stride(0) + cube.kv_head * cluster_of_token.stride(1);
        let of_norms = cube.batch * norms.stride(0) + cube.kv_head * norms.stride(1);
        let end = to.min(body);
        let mut base = from;
        while base < end {
            let count = (end - base).min(blueprint.tile);
            let first =
                usize::cast_from(tokens_by_cluster[of_tokens + base * tokens_by_cluster.stride(2)]);
            let first_cluster = first_row
                + usize::cast_from(
                    cluster_of_token[of_clusters + first * cluster_of_token.stride(2)],
                );
            if unit < count {
                let place = of_tokens + (base + unit) * tokens_by_cluster.stride(2);
                let column = usize::cast_from(tokens_by_cluster[place]);
                let cluster = first_row
                    + usize::cast_from(
                        cluster_of_token[of_clusters + column * cluster_of_token.stride(2)],
                    );
                tile.key_at[unit] = (cluster * clusters.rows.keys.stride(0) / width) as u32;
                tile.norm[unit] = norms[of_norms + column * norms.stride(2)];
                tile.slot[unit] = (cluster - first_cluster) as u32;
                tile.column[unit] = column as u32;
                if blueprint.encoded {
                    let place = position_start + column * rotary.positions.stride(2);
                    let position = rotary.positions[place];
                    tile.position[unit] = u32::cast_from(position);
                }
            }
            sync_cube();
            take_tile::<K, T, I, N>(
                &clusters.rows,
                rotary,
                weights,
                &own,
                &mut tile,
                &mut sums,
                &cube,
                count,
                first_cluster * clusters.rows.values.stride(0) / width,
                clusters.rows.values.stride(0) / width,
                scoring,
                blueprint,
            );
            sync_cube();
            base += blueprint.tile;
        }
    }

    let keys = &tail_rows.keys;
    let values = &tail_rows.values;
    let key_start = cube.batch * keys.stride(0) + cube.kv_head * keys.stride(1);
    let value_start = cube.batch * values.stride(0) + cube.kv_head * values.stride(1);
    let mut base = from.max(body);
    while base < to {
        let count = (to - base).min(blueprint.tile);
        let row = tail_first + base - body;
        if unit < count {
            let key = key_start + (row + unit) * keys.stride(2);
            let column = columns - tail + row + unit;
            tile.key_at[unit] = (key / width) as u32;
            tile.norm[unit] = f32::new(1.0);
            tile.slot[unit] = unit as u32;
            tile.column[unit] = column as u32;
            if blueprint.encoded {
                let place = position_start + column * rotary.positions.stride(2);
                let position = rotary.positions[place];
                tile.position[unit] = u32::cast_from(position);
            }
        }
        sync_cube();
        take_tile::<K, T, I, N>(
            tail_rows,
            rotary,
            weights,
            &own,
            &mut tile,
            &mut sums,
            &cube,
            count,
            (value_start + row * values.stride(2)) / width,
            values.stride(2) / width,
            scoring,
            blueprint,
        );
        sync_cube();
        base += blueprint.tile;
    }
    write_sums::<N>(
        parts,
        &mut tile,
        &sums,
        &cube,
        first_split + cube.split,
        counts.query_heads,
        blueprint,
    );
}
