//! The weights that the pattern of a head picks, from an estimate of all of them.

use burn::tensor::{DType, Int, Tensor, TensorData, activation::softmax};

use super::{
    pattern::{ANTIDIAGONAL_BLOCK, HeadPattern, POOLED_BLOCK},
    prefill::AttentionInput,
    seen::{Seen, covering, highest},
    visibility::Visibility,
    weights::INVISIBLE,
    window::{WindowInput, window_weights},
};
use crate::{
    error::{OpError, Result},
    product::precise_product,
};

/// The last queries that lines are found by.
const LAST_QUERIES: usize = 64;
/// The first tokens, the least columns, the nearest distances and the least of them that lines take
/// in any case.
const FIRST_COLUMNS: usize = 30;
const NEAREST: usize = 100;
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

    /// One more than the last position.
    pub(super) fn end(&self) -> usize {
        let all = self.queries.iter().chain(&self.entries).flatten();
        all.copied().max().map_or(0, |last| (last + 1).max(0) as usize)
    }

    /// The first position of a query.
    pub(super) fn start(&self) -> usize {
        let all = self.queries.iter().flatten().copied().filter(|&position| position >= 0);
        all.min().unwrap_or(0) as usize
    }
}

/// The entries that each query head attends to, `[batch · query_heads]`. Estimates are made for all
/// heads if one wants them.
pub(super) fn picked(
    input: &AttentionInput,
    patterns: &[HeadPattern],
    places: &Places,
) -> Result<Vec<Seen>> {
    let batch = input.queries.dims()[0];
    let mut seen = vec![Seen::All; batch * patterns.len()];
    if places.end() == 0 {
        // Padding alone: there is nothing to see.
        return Ok(seen);
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
                vec![Seen::Ends { first, recent }; seen.len()]
            }
            HeadPattern::VerticalSlash { vertical, slash } => {
                lines(input, places, vertical, slash)?
            }
            HeadPattern::Blocks { blocks } => pooled(input, places, blocks)?,
            HeadPattern::Antidiagonal { stride, threshold } => {
                antidiagonal(input, places, stride, threshold)?
            }
        };
        for (place, found) in of_all.into_iter().enumerate() {
            if patterns[place % patterns.len()] == pattern {
                seen[place] = found;
            }
        }
    }
    Ok(seen)
}

/// The columns and the distances that the last queries give most to.
fn lines(
    input: &AttentionInput,
    places: &Places,
    vertical: usize,
    slash: usize,
) -> Result<Vec<Seen>> {
    let [_, heads, new, _] = input.queries.dims();
    let [_, kv_heads, entries, _] = input.keys.dims();
    let last = LAST_QUERIES.min(new);
    let weights = window_weights(WindowInput {
        queries: input.queries.clone().narrow(2, new - last, last),
        keys: input.keys.clone(),
        visibility: input.visibility.clone().of_last(last),
        scale: input.scale,
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
        Seen::Lines {
            columns: highest(&columns, vertical.max(FIRST_COLUMNS)),
            distances: highest(&distances, slash.max(LEAST_DISTANCES)),
        }
    });
    Ok(found.collect())
}

/// For each block of queries the blocks of keys with the largest products of means.
fn pooled(input: &AttentionInput, places: &Places, blocks: usize) -> Result<Vec<Seen>> {
    let grid = Grid::new(places, POOLED_BLOCK);
    let [batch, heads, _, head_dim] = input.queries.dims();
    let kv_heads = input.keys.dims()[1];
    let mean = |x: Tensor<4>, heads: usize, blocks: usize, held: &dyn Fn(usize) -> Vec<usize>| {
        let sums = x.reshape([batch * heads, blocks, POOLED_BLOCK, head_dim]).sum_dim(2);
        let counts: Vec<f32> =
            (0..batch * heads).flat_map(held).map(|count| count.max(1) as f32).collect();
        let counts = TensorData::new(counts, [batch, heads, blocks, 1]);
        let device = sums.device();
        sums.reshape([batch, heads, blocks, head_dim])
            / Tensor::from_data(counts, (&device, DType::F32))
    };
    let queries = grid.queries(input, places, |offset| offset);
    let keys = grid.keys(input, places);
    let of_queries = |list: usize| grid.held(&places.queries[list / heads], grid.from, grid.rows);
    let of_keys = |list: usize| grid.held(&places.entries[list], 0, grid.columns);
    let queries = mean(queries, heads, grid.rows, &of_queries);
    let keys = mean(keys, kv_heads, grid.columns, &of_keys);
    let scores = products(queries, keys, input.scale)?;
    let found = scores.chunks(grid.rows * grid.columns).enumerate().map(|(list, scores)| {
        let (row, head) = (list / heads, list % heads);
        let there = of_keys(row * kv_heads + head / (heads / kv_heads));
        let seen = scores.chunks(grid.columns).enumerate().flat_map(|(block, scores)| {
            // The softmax keeps the order: the largest products have the largest weights.
            let scores = scores.iter().zip(&there).enumerate().map(|(column, (&score, &held))| {
                let visible = held > 0 && column <= grid.from + block;
                if visible { score } else { f32::NEG_INFINITY }
            });
            highest(&scores.collect::<Vec<f32>>(), blocks)
        });
        grid.seen(seen.collect())
    });
    Ok(found.collect())
}

/// For each block of queries the fewest blocks of keys that have a share of the weights of sums
/// along antidiagonals.
fn antidiagonal(
    input: &AttentionInput,
    places: &Places,
    stride: usize,
    threshold: f64,
) -> Result<Vec<Seen>> {
    let grid = Grid::new(places, ANTIDIAGONAL_BLOCK);
    let [batch, heads, _, head_dim] = input.queries.dims();
    let kv_heads = input.keys.dims()[1];
    let groups = ANTIDIAGONAL_BLOCK / stride;
    let (rows, columns) = (grid.rows * groups, grid.columns * groups);
    // The last query of a group meets its first key, and so on: what is summed stands on an
    // antidiagonal.
    let queries = grid
        .queries(input, places, |offset| offset / stride * stride + (stride - 1 - offset % stride));
    let queries = queries.reshape([batch, heads, rows, stride * head_dim]);
    let keys = grid.keys(input, places).reshape([batch, kv_heads, columns, stride * head_dim]);
    let held = |positions: &[i64], from: usize, count: usize| {
        let mut held = vec![false; count];
        for &position in positions.iter().filter(|&&position| position >= 0) {
            held[position as usize / stride - from * groups] = true;
        }
        held
    };
    let of_keys: Vec<Vec<bool>> =
        places.entries.iter().map(|positions| held(positions, 0, columns)).collect();
    let of_queries: Vec<Vec<bool>> =
        places.queries.iter().map(|positions| held(positions, grid.from, rows)).collect();
    let device = queries.device();
    let on = |numbers: Vec<f32>, dims: [usize; 4]| {
        Tensor::<4>::from_data(TensorData::new(numbers, dims), (&device, DType::F32))
    };
    let group = heads / kv_heads;
    let bias = |visible: bool| if visible { 0.0 } else { INVISIBLE as f32 };
    let of_head = |list: usize| list / heads * kv_heads + list % heads / group;
    let of_keys = (0..batch * heads).flat_map(|list| of_keys[of_head(list)].iter());
    let of_keys = on(of_keys.map(|&held| bias(held)).collect(), [batch, heads, 1, columns]);
    let counted = of_queries.iter().flatten().map(|&held| f32::from(u8::from(held)));
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
        let scores = precise_product(queries * (input.scale / stride as f64), keys);
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
        grid.seen(
            of_blocks
                .flat_map(|(block, sums)| covering(sums, &[0, grid.from + block], threshold))
                .collect(),
        )
    });
    Ok(found.collect())
}

/// Blocks of so many tokens, by position.
struct Grid {
    size: usize,
    /// The first block of queries.
    from: usize,
    /// Blocks of queries.
    rows: usize,
    /// Blocks of keys.
    columns: usize,
}

impl Grid {
    fn new(places: &Places, size: usize) -> Self {
        let columns = places.end().div_ceil(size);
        let from = places.start() / size;
        Self { size, from, rows: columns - from, columns }
    }

    fn seen(&self, seen: Vec<bool>) -> Seen {
        Seen::Blocks { size: self.size, from: self.from, width: self.columns, seen }
    }

    /// How many of these positions are in each of so many blocks.
    fn held(&self, positions: &[i64], from: usize, blocks: usize) -> Vec<usize> {
        let mut counts = vec![0; blocks];
        for &position in positions.iter().filter(|&&position| position >= 0) {
            counts[position as usize / self.size - from] += 1;
        }
        counts
    }

    /// The queries of all blocks, each at its offset from the first, or at what that is turned
    /// into; zeros where there is none.
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

    /// The keys of all blocks, each at its position; zeros where there is none.
    fn keys(&self, input: &AttentionInput, places: &Places) -> Tensor<4> {
        by_slot(&input.keys, places.entries.iter(), self.columns * self.size, |position| position)
    }
}

/// The rows of `x`, `[batch, heads, rows, channels]`, at the slots of their positions, f32,
/// `[batch, heads, slots, channels]`; zeros in the others. `positions` has one list a batch row and
/// head.
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

/// Scaled products of the rows of query heads with those of their kv head, read to the host,
/// `[batch · query_heads][queries · keys]`, one after another.
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
