// A kernel takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use cubecl::prelude::*;

use crate::{
    attention::scoring::{ScoreArgs, ScoreKinds},
    common::{
        masked::{LOWEST, MASKED},
        tile::product::{Rows, SIDE, UNITS, product},
    },
};

/// Summand that keeps the logarithm of a weight of zero finite.
pub(super) const EPSILON: f32 = 1e-10;

/// Layout of the query rows of a kv head in tiles of `rows` rows: a tile has whole heads or, where
/// a head has too many queries, a part of one.
#[derive(CubeType, Clone, Copy)]
struct Layout {
    /// Query heads of a kv head.
    group: usize,
    /// Queries of a head.
    queries: usize,
    /// Rows of a tile.
    rows: usize,
    /// Heads of a tile.
    heads: usize,
    /// Tiles of a head: 1 unless `heads` is 1.
    parts: usize,
    /// The kv head, counted through all batch rows, and the number of them in a row.
    list: usize,
    kv_heads: usize,
    /// Entries before that of the first query.
    old: usize,
}

#[cube]
impl Layout {
    fn new(
        group: usize,
        queries: usize,
        rows: usize,
        list: usize,
        kv_heads: usize,
        old: usize,
    ) -> Self {
        let heads = (rows / queries).max(1).min(group);
        let parts = queries.div_ceil(rows);
        Layout { group, queries, rows, heads, parts, list, kv_heads, old }
    }

    /// Queries of a head in a tile.
    fn of_tile(&self) -> usize {
        self.queries.min(self.rows)
    }

    /// Query of a row of a tile.
    fn row(&self, place: usize, block: usize, part: usize) -> QueryRow {
        let of_tile = self.of_tile();
        let head = block * self.heads + place / of_tile;
        let query = part * self.rows + place % of_tile;
        let exists = place < self.heads * of_tile && head < self.group && query < self.queries;
        QueryRow { head, query, exists }
    }

    /// Query head of a row of a tile, counted through a row of the batch; the last of its kv head
    /// if there is no such row.
    fn query_head(&self, place: usize, block: usize, part: usize) -> usize {
        let head = self.row(place, block, part).head.min(self.group - 1);
        self.list % self.kv_heads * self.group + head
    }
}

/// Query of a row of a tile.
#[derive(CubeType, Clone, Copy)]
struct QueryRow {
    /// The query head, of those of the kv head.
    head: usize,
    query: usize,
    /// Whether there is such a query.
    exists: bool,
}

/// Rows and columns of a tile of scores, and which row sees which column.
#[derive(CubeType)]
struct ScoreTile {
    left: Rows,
    right: Rows,
    /// The last position each row sees.
    limits: Shared<[i32]>,
    /// The position of each column.
    positions: Shared<[i32]>,
}

#[cube]
impl ScoreTile {
    fn new(#[comptime] m: usize, #[comptime] n: usize) -> Self {
        ScoreTile {
            left: Rows::new(m),
            right: Rows::new(n),
            limits: Shared::<[i32]>::new_slice(comptime!(m * SIDE)),
            positions: Shared::<[i32]>::new_slice(comptime!(n * SIDE)),
        }
    }

    /// Takes the rows of a tile. All units of the cube must be done with the rows before.
    fn take_rows<Q: Float, N: Size, I: Int>(
        &mut self,
        queries: &Tensor<Vector<Q, N>>,
        query_positions: &Tensor<I>,
        layout: &Layout,
        block: usize,
        part: usize,
        #[comptime] by_position: bool,
    ) {
        let (batch, kv_head) = (layout.list / layout.kv_heads, layout.list % layout.kv_heads);
        let mut place = UNIT_POS as usize;
        while place < self.left.count {
            let row = layout.row(place, block, part);
            let mut start = 0_usize.runtime();
            let mut limit = 0_i32.runtime();
            if row.exists {
                start = batch * queries.stride(0)
                    + (kv_head * layout.group + row.head) * queries.stride(1)
                    + row.query * queries.stride(2);
                if by_position {
                    let at =
                        batch * query_positions.stride(0) + row.query * query_positions.stride(2);
                    limit = i32::cast_from(query_positions[at]);
                } else {
                    limit = (row.query + layout.old) as i32;
                }
            }
            self.left.starts[place] = start as u32;
            self.limits[place] = limit;
            place += UNITS;
        }
    }

    /// Takes the columns from `base` on. Copies of the last stand behind it.
    fn take_columns<K: Float, N: Size, I: Int>(
        &mut self,
        keys: &Tensor<Vector<K, N>>,
        entry_positions: &Tensor<I>,
        layout: &Layout,
        base: usize,
        #[comptime] by_position: bool,
    ) {
        let (batch, kv_head) = (layout.list / layout.kv_heads, layout.list % layout.kv_heads);
        let mut place = UNIT_POS as usize;
        while place < self.right.count {
            let column = (base + place).min(keys.shape(2) - 1);
            let start = batch * keys.stride(0) + kv_head * keys.stride(1) + column * keys.stride(2);
            self.right.starts[place] = start as u32;
            if by_position {
                let at = batch * entry_positions.stride(0)
                    + kv_head * entry_positions.stride(1)
                    + column * entry_positions.stride(2);
                self.positions[place] = i32::cast_from(entry_positions[at]);
            } else {
                self.positions[place] = column as i32;
            }
            place += UNITS;
        }
    }

    /// Writes the scores of the unit's rows and columns, as [`product`] orders them.
    fn scores<Q: Float, NQ: Size, K: Float, NK: Size>(
        &mut self,
        queries: &Tensor<Vector<Q, NQ>>,
        keys: &Tensor<Vector<K, NK>>,
        scores: &mut Array<f32>,
        scoring: &ScoreArgs,
        layout: &Layout,
        block: usize,
        part: usize,
        #[comptime] channels: usize,
        #[comptime] kinds: ScoreKinds,
    ) {
        let (across, down) = (UNIT_POS as usize % SIDE, UNIT_POS as usize / SIDE);
        let (m, n) = comptime!((self.left.count / SIDE, self.right.count / SIDE));
        product::<Q, NQ, K, NK>(queries, &mut self.left, keys, &mut self.right, scores, channels);
        #[unroll]
        for j in 0..n {
            let position = self.positions[across + j * SIDE];
            #[unroll]
            for i in 0..m {
                let limit = self.limits[down + i * SIDE];
                let distance = position - limit;
                let mut head = 0usize.runtime();
                if comptime!(kinds.slopes) {
                    head = layout.query_head(down + i * SIDE, block, part);
                }
                let scaled = scores[i * n + j] * scoring.scale;
                scores[i * n + j] = scoring.score(scaled, head, distance, kinds);
                let mut hidden = position < 0 || position > limit;
                if comptime!(kinds.window) {
                    hidden = hidden || scoring.hides(distance, limit, kinds);
                }
                if hidden {
                    scores[i * n + j] = f32::new(MASKED);
                }
            }
        }
    }
}

/// First pass: the highest score of each row in a split of the columns, and the sum of the
/// exponentials of scores relative to it. Both are `[splits, batch · kv_heads, rows]`.
#[cube(launch)]
pub(super) fn measure<Q: Float, K: Float, I: Int, NQ: Size, NK: Size>(
    queries: &Tensor<Vector<Q, NQ>>,
    keys: &Tensor<Vector<K, NK>>,
    query_positions: &Tensor<I>,
    entry_positions: &Tensor<I>,
    highest: &mut Tensor<f32>,
    sums: &mut Tensor<f32>,
    old: usize,
    scoring: &ScoreArgs,
    group: usize,
    tiles_of_split: usize,
    #[comptime] channels: usize,
    #[comptime] m: usize,
    #[comptime] n: usize,
    #[comptime] by_position: bool,
    #[comptime] kinds: ScoreKinds,
    #[define(Q, K, I)] _types: [ElemType; 3],
) {
    let unit = UNIT_POS as usize;
    let (across, down) = (unit % SIDE, unit / SIDE);
    let split = CUBE_POS_X as usize;
    let list = CUBE_POS_Z as usize;
    let (kv_heads, entries) = (keys.shape(1), keys.shape(2));
    let layout = Layout::new(group, queries.shape(2), comptime!(m * SIDE), list, kv_heads, old);
    let block = CUBE_POS_Y as usize / layout.parts;
    let part = CUBE_POS_Y as usize % layout.parts;

    let mut tile = ScoreTile::new(m, n);
    let mut scores = Array::<f32>::new(comptime!(m * n));
    let mut high = Array::<f32>::new(m);
    let mut sum = Array::<f32>::new(m);
    #[unroll]
    for i in 0..m {
        high[i] = LOWEST;
        sum[i] = 0.0;
    }
    tile.take_rows::<Q, NQ, I>(queries, query_positions, &layout, block, part, by_position);
    let mut base = split * tiles_of_split * comptime!(n * SIDE);
    let end = (base + tiles_of_split * comptime!(n * SIDE)).min(entries);
    while base < end {
        tile.take_columns::<K, NK, I>(keys, entry_positions, &layout, base, by_position);
        tile.scores::<Q, NQ, K, NK>(
            queries,
            keys,
            &mut scores,
            scoring,
            &layout,
            block,
            part,
            channels,
            kinds,
        );
        #[unroll]
        for i in 0..m {
            let mut new_high = high[i];
            #[unroll]
            for j in 0..n {
                if base + across + j * SIDE < entries && scores[i * n + j] > new_high {
                    new_high = scores[i * n + j];
                }
            }
            let mut new_sum = sum[i] * (high[i] - new_high).exp();
            #[unroll]
            for j in 0..n {
                if base + across + j * SIDE < entries {
                    new_sum += (scores[i * n + j] - new_high).exp();
                }
            }
            high[i] = new_high;
            sum[i] = new_sum;
        }
        // Positions are read by now, of whoever is last.
        sync_cube();
        base += comptime!(n * SIDE);
    }

    let mut high_of = Shared::<[f32]>::new_slice(UNITS);
    let mut sum_of = Shared::<[f32]>::new_slice(UNITS);
    #[unroll]
    for i in 0..m {
        high_of[unit] = high[i];
        sum_of[unit] = sum[i];
        sync_cube();
        let row = layout.row(down + i * SIDE, block, part);
        if across == 0 && row.exists {
            let mut all = high[i];
            for other in 1..SIDE {
                if high_of[unit + other] > all {
                    all = high_of[unit + other];
                }
            }
            let mut total = f32::new(0.0);
            for other in 0..SIDE {
                total += sum_of[unit + other] * (high_of[unit + other] - all).exp();
            }
            let place = row.head * layout.queries + row.query;
            let at = split * highest.stride(0) + list * highest.stride(1) + place;
            highest[at] = all;
            let at = split * sums.stride(0) + list * sums.stride(1) + place;
            sums[at] = total;
        }
        sync_cube();
    }
}

/// Highest score of each row, and one over the sum of its exponentials, over all splits: they turn
/// scores into weights. The latter is zero for queries that are not counted; those that are
/// counted come last. Both are `[batch · kv_heads, rows]`; one unit per row.
#[cube(launch)]
pub(super) fn settle<I: Int>(
    highest_of: &Tensor<f32>,
    sums_of: &Tensor<f32>,
    query_positions: &Tensor<I>,
    counted: &Tensor<I>,
    highest: &mut Tensor<f32>,
    inverse: &mut Tensor<f32>,
    scoring: &ScoreArgs,
    queries: usize,
    kv_heads: usize,
    #[comptime] by_position: bool,
    #[comptime] kinds: ScoreKinds,
    #[define(I)] _type: ElemType,
) {
    let list = CUBE_POS_Y as usize;
    let batch = list / kv_heads;
    let row = CUBE_POS_X as usize * UNITS + UNIT_POS as usize;
    if row < highest.shape(1) {
        let query = row % queries;
        let mut all = LOWEST.runtime();
        let place = list * highest_of.stride(1) + row;
        for split in 0..highest_of.shape(0) {
            let high = highest_of[split * highest_of.stride(0) + place];
            if high > all {
                all = high;
            }
        }
        let mut total = f32::new(0.0);
        for split in 0..highest_of.shape(0) {
            let high = highest_of[split * highest_of.stride(0) + place];
            let sum = sums_of[split * sums_of.stride(0) + list * sums_of.stride(1) + row];
            total += sum * (high - all).exp();
        }
        let blind = all <= MASKED;
        if comptime!(kinds.sinks) {
            let head = list % kv_heads * (highest.shape(1) / queries) + row / queries;
            let (high, with_sink, _) = scoring.with_sink(all, total, head);
            all = high;
            total = with_sink;
        }
        let mut counts = query + usize::cast_from(counted[batch * counted.stride(0)]) >= queries;
        if by_position {
            let at = batch * query_positions.stride(0) + query * query_positions.stride(2);
            counts = counts && i32::cast_from(query_positions[at]) >= 0;
        }
        let mut factor = f32::new(0.0);
        if counts {
            factor = 1.0 / total;
        }
        // Nothing is in the window: whatever the score, the weight is zero.
        if comptime!(kinds.window) && blind {
            all = -LOWEST;
        }
        let at = list * highest.stride(0) + row;
        highest[at] = all;
        let at = list * inverse.stride(0) + row;
        inverse[at] = factor;
    }
}

/// Result of the second pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// The weights: `first` is `[batch, query_heads, queries, entries]`.
    Weights,
    /// Sums over the queries, `[batch, query_heads, 1, entries]` each: `first` of the weights, and
    /// others if they are wanted.
    Moments {
        /// Sums of squared differences from the mean over the queries that count.
        deviations: bool,
        /// Sums of w · ln(1 / (w + 10⁻¹⁰)).
        entropies: bool,
    },
}

/// Second pass: computes the scores again and turns them into weights.
#[cube(launch)]
pub(super) fn weigh<Q: Float, K: Float, I: Int, NQ: Size, NK: Size>(
    queries: &Tensor<Vector<Q, NQ>>,
    keys: &Tensor<Vector<K, NK>>,
    query_positions: &Tensor<I>,
    entry_positions: &Tensor<I>,
    highest: &Tensor<f32>,
    inverse: &Tensor<f32>,
    first: &mut Tensor<f32>,
    deviations: &mut Tensor<f32>,
    entropies: &mut Tensor<f32>,
    old: usize,
    scoring: &ScoreArgs,
    group: usize,
    #[comptime] channels: usize,
    #[comptime] m: usize,
    #[comptime] n: usize,
    #[comptime] by_position: bool,
    #[comptime] kinds: ScoreKinds,
    #[comptime] kind: Kind,
    #[define(Q, K, I)] _types: [ElemType; 3],
) {
    let unit = UNIT_POS as usize;
    let (across, down) = (unit % SIDE, unit / SIDE);
    let base = CUBE_POS_X as usize * comptime!(n * SIDE);
    let block = CUBE_POS_Y as usize;
    let list = CUBE_POS_Z as usize;
    let (kv_heads, entries) = (keys.shape(1), keys.shape(2));
    let layout = Layout::new(group, queries.shape(2), comptime!(m * SIDE), list, kv_heads, old);
    let (batch, kv_head) = (list / kv_heads, list % kv_heads);
    let first_head = kv_head * layout.group;
    let of_tile = layout.of_tile();

    let mut tile = ScoreTile::new(m, n);
    let mut scores = Array::<f32>::new(comptime!(m * n));
    let mut high_of = Shared::<[f32]>::new_slice(comptime!(m * SIDE));
    let mut factor_of = Shared::<[f32]>::new_slice(comptime!(m * SIDE));
    let mut columns = Shared::<[f32]>::new_slice(comptime!(m * SIDE * SIDE));
    // Queries that count in the parts before.
    let mut before = f32::new(0.0);
    tile.take_columns::<K, NK, I>(keys, entry_positions, &layout, base, by_position);

    for part in 0..layout.parts {
        tile.take_rows::<Q, NQ, I>(queries, query_positions, &layout, block, part, by_position);
        let mut place = unit;
        while place < comptime!(m * SIDE) {
            let row = layout.row(place, block, part);
            high_of[place] = 0.0;
            factor_of[place] = 0.0;
            if row.exists {
                let at = row.head * layout.queries + row.query;
                high_of[place] = highest[list * highest.stride(0) + at];
                factor_of[place] = inverse[list * inverse.stride(0) + at];
            }
            place += UNITS;
        }
        tile.scores::<Q, NQ, K, NK>(
            queries,
            keys,
            &mut scores,
            scoring,
            &layout,
            block,
            part,
            channels,
            kinds,
        );
        #[unroll]
        for i in 0..m {
            let (high, factor) = (high_of[down + i * SIDE], factor_of[down + i * SIDE]);
            #[unroll]
            for j in 0..n {
                let mut weight = f32::new(0.0);
                if factor != 0.0 {
                    weight = (scores[i * n + j] - high).exp() * factor;
                }
                scores[i * n + j] = weight;
            }
        }
        match comptime!(kind) {
            Kind::Weights =>
            {
                #[unroll]
                for i in 0..m {
                    let row = layout.row(down + i * SIDE, block, part);
                    if row.exists {
                        let start = batch * first.stride(0)
                            + (first_head + row.head) * first.stride(1)
                            + row.query * first.stride(2);
                        #[unroll]
                        for j in 0..n {
                            let column = base + across + j * SIDE;
                            if column < entries {
                                first[start + column] = scores[i * n + j];
                            }
                        }
                    }
                }
            }
            Kind::Moments { deviations: deviate, entropies: scatter } => {
                let mut count = f32::new(0.0);
                #[unroll]
                for j in 0..n {
                    #[unroll]
                    for i in 0..m {
                        columns[(down + i * SIDE) * SIDE + across] = scores[i * n + j];
                    }
                    sync_cube();
                    let column = base + across + j * SIDE;
                    // Sixteen units per head, one per column.
                    let mut head = down;
                    while head < layout.heads {
                        let row = layout.row(head * of_tile, block, part);
                        if row.exists && column < entries {
                            let end = head * of_tile + of_tile.min(layout.queries - row.query);
                            let mut sum = f32::new(0.0);
                            count = f32::new(0.0);
                            for place in head * of_tile..end {
                                sum += columns[place * SIDE + across];
                                if factor_of[place] != 0.0 {
                                    count += 1.0;
                                }
                            }
                            let mean = sum / count.max(1.0);
                            let mut squares = f32::new(0.0);
                            let mut entropy = f32::new(0.0);
                            if comptime!(deviate || scatter) {
                                for place in head * of_tile..end {
                                    let weight = columns[place * SIDE + across];
                                    if factor_of[place] != 0.0 {
                                        squares += (weight - mean) * (weight - mean);
                                    }
                                    if comptime!(scatter) {
                                        entropy -= weight * (weight + EPSILON).ln();
                                    }
                                }
                            }
                            let at = batch * first.stride(0)
                                + (first_head + row.head) * first.stride(1)
                                + column;
                            if part > 0 {
                                // What two sets deviate from the mean of both.
                                let sum_before = first[at];
                                if before > 0.0 && count > 0.0 {
                                    let apart = mean - sum_before / before;
                                    squares += apart * apart * before * count / (before + count);
                                }
                                sum += sum_before;
                            }
                            first[at] = sum;
                            if comptime!(deviate) {
                                let at = batch * deviations.stride(0)
                                    + (first_head + row.head) * deviations.stride(1)
                                    + column;
                                if part > 0 {
                                    squares += deviations[at];
                                }
                                deviations[at] = squares;
                            }
                            if comptime!(scatter) {
                                let at = batch * entropies.stride(0)
                                    + (first_head + row.head) * entropies.stride(1)
                                    + column;
                                if part > 0 {
                                    entropy += entropies[at];
                                }
                                entropies[at] = entropy;
                            }
                        }
                        head += SIDE;
                    }
                    sync_cube();
                }
                before += count;
            }
        }
        sync_cube();
    }
}
