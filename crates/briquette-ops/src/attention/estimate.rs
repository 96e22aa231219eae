//! Masks of the weights that the patterns of heads pick, from an estimate of all weights.

use burn::tensor::{DType, Int, Tensor, TensorData, activation::softmax};

use super::{
    pattern::{ANTIDIAGONAL_BLOCK, HeadPattern, POOLED_BLOCK},
    prefill::AttentionInput,
    sparsity_mask::{SparsityMask, covering, highest},
    visibility::Visibility,
    weights::INVISIBLE,
    window::{WindowInput, window_weights},
};
use crate::{
    error::{OpError, Result},
    product::precise_product,
};

/// Number of last queries whose weights pick the columns and distances of
/// [`HeadPattern::VerticalSlash`].
const LAST_QUERIES: usize = 64;
/// Number of first tokens whose columns come ahead of all others, and the least number of columns.
const FIRST_COLUMNS: usize = 30;
/// Distances below this come ahead of all others.
const NEAREST: usize = 100;
/// The least number of distances.
const LEAST_DISTANCES: usize = 50;

/// The positions of queries and entries, on the host.
pub(super) struct Places {
    /// `[batch][queries]`
    pub(super) queries: Vec<Vec<i64>>,
    /// `[batch · kv_heads][entries]`
    pub(super) entries: Vec<Vec<i64>>,
}

impl Places {
    pub(super) fn of(input: &AttentionInput) -> Result<Self> {
        let [batch, _, new, _] = input.queries.dims();
        let [_, kv_heads, entries, _] = input.keys.dims();
        match &input.visibility {
            Visibility::Causal => {
                let range = |from: usize| (from as i64..entries as i64).collect::<Vec<i64>>();
                Ok(Self {
                    queries: vec![range(entries - new); batch],
                    entries: vec![range(0); batch * kv_heads],
                })
            }
            Visibility::Positions { queries, entries } => {
                let read = |x: &Tensor<3, Int>| {
                    let width = x.dims()[2];
                    let all = x.clone().try_into_vec_as::<i64>().map_err(failed)?;
                    Ok::<_, OpError>(all.chunks(width).map(<[i64]>::to_vec).collect())
                };
                Ok(Self { queries: read(queries)?, entries: read(entries)? })
            }
        }
    }

    /// One more than the highest position of a query or entry; 0 if all are padding.
    pub(super) fn end(&self) -> usize {
        let all = self.queries.iter().chain(&self.entries).flatten();
        all.copied().max().map_or(0, |last| (last + 1).max(0) as usize)
    }

    /// The lowest position of a query, padding excepted; 0 if all queries are padding.
    pub(super) fn start(&self) -> usize {
        let all = self.queries.iter().flatten().copied().filter(|&position| position >= 0);
        all.min().unwrap_or(0) as usize
    }
}

/// The mask of each query head, `[batch · query_heads]`. The estimate of a pattern is made for all
/// heads if one of them has that pattern.
pub(super) fn masks(
    input: &AttentionInput,
    patterns: &[HeadPattern],
    places: &Places,
) -> Result<Vec<SparsityMask>> {
    let batch = input.queries.dims()[0];
    let mut masks = vec![SparsityMask::All; batch * patterns.len()];
    if places.end() == 0 {
        // Padding alone: there is nothing to see.
        return Ok(masks);
    }
    let mut done: Vec<HeadPattern> = Vec::new();
    for &pattern in patterns {
        if done.contains(&pattern) {
            continue;
        }
        done.push(pattern);
        let of_all = match pattern {
            HeadPattern::Dense => continue,
            HeadPattern::AShape { first, recent } => {
                vec![SparsityMask::Ends { first, recent }; masks.len()]
            }
            HeadPattern::VerticalSlash { vertical, slash } => {
                lines(input, places, vertical, slash)?
            }
            HeadPattern::Blocks { blocks } => pooled(input, places, blocks)?,
            HeadPattern::Antidiagonal { stride, threshold } => {
                antidiagonal(input, places, stride, threshold)?
            }
        };
        for (place, mask) in of_all.into_iter().enumerate() {
            if patterns[place % patterns.len()] == pattern {
                masks[place] = mask;
            }
        }
    }
    Ok(masks)
}

/// Masks of the columns and the distances to which the last queries give the most weight.
fn lines(
    input: &AttentionInput,
    places: &Places,
    vertical: usize,
    slash: usize,
) -> Result<Vec<SparsityMask>> {
    let [_, heads, new, _] = input.queries.dims();
    let [_, kv_heads, entries, _] = input.keys.dims();
    let last = LAST_QUERIES.min(new);
    let weights = window_weights(WindowInput {
        queries: input.queries.clone().narrow(2, new - last, last),
        keys: input.keys.clone(),
        visibility: input.visibility.clone().of_last(last),
        scoring: input.scoring.clone(),
    });
    let weights = weights.try_into_vec_as::<f32>().map_err(failed)?;
    let end = places.end();
    let found = weights.chunks(last * entries).enumerate().map(|(head, weights)| {
        let (row, head) = (head / heads, head % heads);
        let of_queries = &places.queries[row][new - last..];
        let of_entries = &places.entries[row * kv_heads + head / (heads / kv_heads)];
        let mut columns = vec![0.0_f32; entries];
        let mut distances = vec![0.0_f32; end];
        for (weights, &query) in weights.chunks(entries).zip(of_queries) {
            for ((weight, &entry), column) in weights.iter().zip(of_entries).zip(&mut columns) {
                if entry >= 0 && entry <= query {
                    *column += weight;
                    distances[(query - entry) as usize] += weight;
                }
            }
        }
        for (column, &entry) in columns.iter_mut().zip(of_entries) {
            *column = match entry {
                ..0 => f32::NEG_INFINITY,
                entry if entry < FIRST_COLUMNS as i64 => f32::INFINITY,
                _ => *column,
            };
        }
        distances.iter_mut().take(NEAREST).for_each(|distance| *distance = f32::INFINITY);
        SparsityMask::Lines {
            columns: highest(&columns, vertical.max(FIRST_COLUMNS)),
            distances: highest(&distances, slash.max(LEAST_DISTANCES)),
        }
    });
    Ok(found.collect())
}

/// Masks of the `blocks` blocks of keys whose mean has the largest product with the mean of each
/// block of queries.
fn pooled(input: &AttentionInput, places: &Places, blocks: usize) -> Result<Vec<SparsityMask>> {
    let grid = Grid::new(places, POOLED_BLOCK);
    let [batch, heads, _, head_dim] = input.queries.dims();
    let kv_heads = input.keys.dims()[1];
    let mean = |x: Tensor<4>, heads: usize, blocks: usize, counts: &dyn Fn(usize) -> Vec<usize>| {
        let sums = x.reshape([batch * heads, blocks, POOLED_BLOCK, head_dim]).sum_dim(2);
        let counts: Vec<f32> =
            (0..batch * heads).flat_map(counts).map(|count| count.max(1) as f32).collect();
        let counts = TensorData::new(counts, [batch, heads, blocks, 1]);
        let device = sums.device();
        sums.reshape([batch, heads, blocks, head_dim])
            / Tensor::from_data(counts, (&device, DType::F32))
    };
    let queries = grid.queries(input, places, |offset| offset);
    let keys = grid.keys(input, places);
    let of_queries = |list: usize| grid.counts(&places.queries[list / heads], grid.from, grid.rows);
    let of_keys = |list: usize| grid.counts(&places.entries[list], 0, grid.columns);
    let queries = mean(queries, heads, grid.rows, &of_queries);
    let keys = mean(keys, kv_heads, grid.columns, &of_keys);
    let scores = products(queries, keys, input.scoring.scale)?;
    let found = scores.chunks(grid.rows * grid.columns).enumerate().map(|(list, scores)| {
        let (row, head) = (list / heads, list % heads);
        let counts = of_keys(row * kv_heads + head / (heads / kv_heads));
        let visible = scores.chunks(grid.columns).enumerate().flat_map(|(block, scores)| {
            // The softmax keeps the order: the largest products have the largest weights.
            let scores =
                scores.iter().zip(&counts).enumerate().map(|(column, (&score, &count))| {
                    let visible = count > 0 && column <= grid.from + block;
                    if visible { score } else { f32::NEG_INFINITY }
                });
            highest(&scores.collect::<Vec<f32>>(), blocks)
        });
        grid.mask(visible.collect())
    });
    Ok(found.collect())
}

/// Masks of the fewest blocks of keys that have the share `threshold` of each block of queries'
/// weights, as estimated from sums along antidiagonals; the first block of keys and the queries'
/// own are always in.
fn antidiagonal(
    input: &AttentionInput,
    places: &Places,
    stride: usize,
    threshold: f64,
) -> Result<Vec<SparsityMask>> {
    let grid = Grid::new(places, ANTIDIAGONAL_BLOCK);
    let [batch, heads, _, head_dim] = input.queries.dims();
    let kv_heads = input.keys.dims()[1];
    let groups = ANTIDIAGONAL_BLOCK / stride;
    let (rows, columns) = (grid.rows * groups, grid.columns * groups);
    // The last query of a group meets its first key, and so on along an antidiagonal.
    let queries = grid
        .queries(input, places, |offset| offset / stride * stride + (stride - 1 - offset % stride));
    let queries = queries.reshape([batch, heads, rows, stride * head_dim]);
    let keys = grid.keys(input, places).reshape([batch, kv_heads, columns, stride * head_dim]);
    let occupied = |positions: &[i64], from: usize, count: usize| {
        let mut occupied = vec![false; count];
        for &position in positions.iter().filter(|&&position| position >= 0) {
            occupied[position as usize / stride - from * groups] = true;
        }
        occupied
    };
    let of_keys: Vec<Vec<bool>> =
        places.entries.iter().map(|positions| occupied(positions, 0, columns)).collect();
    let of_queries: Vec<Vec<bool>> =
        places.queries.iter().map(|positions| occupied(positions, grid.from, rows)).collect();
    let device = queries.device();
    let on = |numbers: Vec<f32>, dims: [usize; 4]| {
        Tensor::<4>::from_data(TensorData::new(numbers, dims), (&device, DType::F32))
    };
    let group = heads / kv_heads;
    let bias = |visible: bool| if visible { 0.0 } else { INVISIBLE as f32 };
    let of_head = |list: usize| list / heads * kv_heads + list % heads / group;
    let of_keys = (0..batch * heads).flat_map(|list| of_keys[of_head(list)].iter());
    let of_keys = on(of_keys.map(|&occupied| bias(occupied)).collect(), [batch, heads, 1, columns]);
    let counted = of_queries.iter().flatten().map(|&occupied| f32::from(u8::from(occupied)));
    let counted = on(counted.collect(), [batch, 1, rows, 1]);
    let last_block = (0..groups * groups).map(|place| bias(place % groups <= place / groups));
    let last_block = on(last_block.collect(), [1, 1, groups, groups]);
    // One block of queries at a time, so that a long prompt has no matrix of groups.
    let mut all = Vec::with_capacity(grid.rows);
    for block in 0..grid.rows {
        let (first, blocks) = (block * groups, grid.from + block + 1);
        let end = blocks * groups;
        let queries = queries.clone().narrow(2, first, groups);
        let queries = queries.reshape([batch, kv_heads, group * groups, stride * head_dim]);
        let keys = keys.clone().narrow(2, 0, end).swap_dims(2, 3);
        let scores = precise_product(queries * (input.scoring.scale / stride as f64), keys);
        let scores = scores.reshape([batch, heads, groups, end]);
        let before = Tensor::zeros([1, 1, groups, end - groups], (&device, DType::F32));
        let causal = Tensor::cat(vec![before, last_block.clone()], 3);
        let scores = scores + of_keys.clone().narrow(3, 0, end) + causal;
        let weights = softmax(scores, 3) * counted.clone().narrow(2, first, groups);
        let sums = weights.sum_dim(2).reshape([batch, heads, blocks, groups]).sum_dim(3);
        let rest = Tensor::zeros([batch, heads, grid.columns - blocks, 1], (&device, DType::F32));
        all.push(Tensor::cat(vec![sums, rest], 2).swap_dims(2, 3));
    }
    let sums = Tensor::cat(all, 2).try_into_vec_as::<f32>().map_err(failed)?;
    let found = sums.chunks(grid.rows * grid.columns).map(|sums| {
        let of_blocks = sums.chunks(grid.columns).enumerate();
        grid.mask(
            of_blocks
                .flat_map(|(block, sums)| covering(sums, &[0, grid.from + block], threshold))
                .collect(),
        )
    });
    Ok(found.collect())
}

/// Division of positions into blocks.
struct Grid {
    /// Tokens of a block.
    size: usize,
    /// Number of the first block of queries.
    from: usize,
    /// Number of blocks of queries.
    rows: usize,
    /// Number of blocks of keys.
    columns: usize,
}

impl Grid {
    fn new(places: &Places, size: usize) -> Self {
        let columns = places.end().div_ceil(size);
        let from = places.start() / size;
        Self { size, from, rows: columns - from, columns }
    }

    fn mask(&self, visible: Vec<bool>) -> SparsityMask {
        SparsityMask::Blocks { size: self.size, from: self.from, width: self.columns, visible }
    }

    /// Number of `positions` in each of `blocks` blocks, of which the first is number `from`.
    fn counts(&self, positions: &[i64], from: usize, blocks: usize) -> Vec<usize> {
        let mut counts = vec![0; blocks];
        for &position in positions.iter().filter(|&&position| position >= 0) {
            counts[position as usize / self.size - from] += 1;
        }
        counts
    }

    /// Queries of all blocks, each at the slot that `turned` makes of its offset from the first
    /// block; zeros in slots without a query.
    fn queries(
        &self,
        input: &AttentionInput,
        places: &Places,
        turned: impl Fn(usize) -> usize,
    ) -> Tensor<4> {
        let heads = input.queries.dims()[1];
        let start = self.from * self.size;
        let lists = places.queries.iter().flat_map(|row| std::iter::repeat_n(row, heads));
        let slots = self.rows * self.size;
        by_slot(&input.queries, lists, slots, |position| turned(position - start))
    }

    /// Keys of all blocks, each at the slot of its position; zeros in slots without a key.
    fn keys(&self, input: &AttentionInput, places: &Places) -> Tensor<4> {
        by_slot(&input.keys, places.entries.iter(), self.columns * self.size, |position| position)
    }
}

/// Rows of `x`, `[batch, heads, rows, channels]`, at the slots of their positions, f32,
/// `[batch, heads, slots, channels]`; zeros in the other slots. `positions` has one list per batch
/// row and head.
fn by_slot<'a>(
    x: &Tensor<4>,
    positions: impl Iterator<Item = &'a Vec<i64>>,
    slots: usize,
    slot: impl Fn(usize) -> usize,
) -> Tensor<4> {
    let [batch, heads, rows, channels] = x.dims();
    let device = x.device();
    let zeros = (batch * heads * rows) as i64;
    let mut indices = vec![zeros; batch * heads * slots];
    for (list, positions) in positions.enumerate() {
        for (row, &position) in positions.iter().enumerate().filter(|(_, position)| **position >= 0)
        {
            indices[list * slots + slot(position as usize)] = (list * rows + row) as i64;
        }
    }
    let x = x.clone().cast(DType::F32).reshape([batch * heads * rows, channels]);
    let zero = Tensor::zeros([1, channels], (&device, DType::F32));
    let count = indices.len();
    let indices = Tensor::<1, Int>::from_data(TensorData::new(indices, [count]), &device);
    Tensor::cat(vec![x, zero], 0).select(0, indices).reshape([batch, heads, slots, channels])
}

/// Scaled products of the rows of each query head with those of its kv head, read to the host: for
/// each of `batch · query_heads` one after another, `queries · keys` numbers.
fn products(queries: Tensor<4>, keys: Tensor<4>, scale: f64) -> Result<Vec<f32>> {
    let [batch, heads, rows, channels] = queries.dims();
    let kv_heads = keys.dims()[1];
    let queries = queries.reshape([batch, kv_heads, heads / kv_heads * rows, channels]);
    let products = precise_product(queries * scale, keys.swap_dims(2, 3));
    products.try_into_vec_as::<f32>().map_err(failed)
}

fn failed(error: impl ToString) -> OpError {
    OpError::failed("sparse attention", error)
}
