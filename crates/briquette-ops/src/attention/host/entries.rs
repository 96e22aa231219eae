//! Entries of their own keys and values, as they lie: in buffers with room for more, in a list of
//! all heads, or in both.

use std::ops::Range;

use burn::tensor::{DType, Tensor, bf16, f16};
use half::slice::HalfFloatSliceExt;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::call::Call;
use crate::{
    attention::{
        decode::{DecodeInput, DecodeOutput, DenseKv, RaggedKv},
        visibility::Visibility,
    },
    error::Result,
    host::{
        HostInput, View,
        rows::{add_all, dot, exponentials, highest},
    },
};

const INPUT: HostInput = HostInput("decode_attention");

/// Entries of a part. It is always as many, so that sums do not depend on the number of threads.
const PART: usize = 256;
/// Position of a query that sees every entry.
const BEHIND_ALL: i64 = i32::MAX as i64;
/// Entries whose numbers are expanded at a time.
const BLOCK: usize = 32;

/// Numbers of the type that they are held in.
enum Numbers {
    F32(View<f32>),
    F16(View<f16>),
    BF16(View<bf16>),
}

impl Numbers {
    fn read<const D: usize>(x: &Tensor<D>) -> Result<Self> {
        match x.dtype() {
            DType::F16 => INPUT.view(x).map(Self::F16),
            DType::BF16 => INPUT.view(x).map(Self::BF16),
            _ => INPUT.view(x).map(Self::F32),
        }
    }

    /// Numbers in f32: where they lie, or expanded into `to`.
    #[inline(always)]
    fn expanded<'a>(&'a self, range: Range<usize>, to: &'a mut [f32]) -> &'a [f32] {
        let to = &mut to[..range.len()];
        match self {
            Self::F32(all) => return &all[range],
            Self::F16(all) => all[range].convert_to_f32_slice(to),
            Self::BF16(all) => all[range].convert_to_f32_slice(to),
        }
        to
    }
}

/// Keys and values, a row for each entry.
struct Rows {
    keys: Numbers,
    values: Numbers,
}

impl Rows {
    fn read<const D: usize>(keys: &Tensor<D>, values: &Tensor<D>) -> Result<Self> {
        Ok(Self { keys: Numbers::read(keys)?, values: Numbers::read(values)? })
    }
}

/// Entries of a batch row and kv head that lie one after another.
struct Run {
    /// Index of the batch row and kv head.
    list: usize,
    /// Whether the rows are those of the list of all heads.
    in_list: bool,
    /// Rows of the entries.
    rows: Range<usize>,
    /// Column of the first in the weights, and in the positions.
    column: usize,
}

impl Run {
    /// Cuts a run into parts.
    fn parts(self) -> impl Iterator<Item = Self> {
        let Self { list, in_list, rows, column } = self;
        rows.clone().step_by(PART).map(move |start| Self {
            list,
            in_list,
            rows: start..(start + PART).min(rows.end),
            column: column + start - rows.start,
        })
    }
}

/// Positions: who sees what.
struct Positions {
    /// Whether they are those of the list of all heads. What follows it is seen.
    of_list: bool,
    /// Position of the query of each batch row.
    queries: Vec<i64>,
    /// `[lists, columns]`
    entries: Vec<i64>,
    columns: usize,
}

/// The entries of a layer.
struct Held {
    /// Batch rows, kv heads, channels of a key and of a value.
    dims: [usize; 4],
    /// Those in a list of all heads.
    list: Option<Rows>,
    rows: Rows,
    positions: Option<Positions>,
    /// Columns of the weights.
    columns: usize,
}

/// What attention over a part of the entries of a head has found.
struct Part {
    run: Run,
    /// Weights relative to the highest score, `[group, entries]`.
    weights: Vec<f32>,
    /// `[group]`
    highest: Vec<f32>,
    /// Sums of the weights, `[group]`.
    totals: Vec<f32>,
    /// Sums of the weighted values, `[group, value_dim]`.
    sums: Vec<f32>,
}

impl Part {
    /// The factor of weights that are relative to another score.
    fn share(&self, head: usize, highest: f32) -> f32 {
        (self.highest[head] - highest).exp()
    }
}

impl Held {
    /// Changes the scores of a part from products to what its weights are made of.
    #[inline(always)]
    fn finish(&self, call: &Call<'_>, run: &Run, scores: &mut [f32]) {
        call.cap(scores);
        let entries = run.rows.len();
        let Some(positions) = self.positions.as_ref().filter(|at| at.of_list == run.in_list) else {
            return;
        };
        let Positions { queries, entries: of_entries, columns, .. } = positions;
        let own = queries[run.list / self.dims[1]];
        let start = run.list * columns + run.column;
        let of_entries = &of_entries[start..start + entries];
        let first = call.first_seen(own);
        for (head, scores) in scores.chunks_exact_mut(entries).enumerate() {
            let slope = call.slope(run.list, head);
            for (score, &position) in scores.iter_mut().zip(of_entries) {
                let is_seen = (first..=own).contains(&position);
                *score = match is_seen {
                    true => *score + slope * (position - own) as f32,
                    false => f32::NEG_INFINITY,
                };
            }
        }
    }
}

/// Attention of a group of queries over a part of the entries of their head.
struct Attend<'a> {
    call: &'a Call<'a>,
    held: &'a Held,
    run: Run,
}

impl WithSimd for Attend<'_> {
    type Output = Part;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Part {
        let Self { call, held, run } = self;
        let (group, [.., head_dim, value_dim]) = (call.group, held.dims);
        let rows = match &held.list {
            Some(list) if run.in_list => list,
            _ => &held.rows,
        };
        let entries = run.rows.len();
        let start = run.list * group * head_dim;
        let queries = &call.queries[start..start + group * head_dim];
        let mut scratch = vec![0.0; BLOCK * head_dim.max(value_dim)];
        let blocks = (0..entries).step_by(BLOCK).map(|first| first..(first + BLOCK).min(entries));
        let of_rows = |block: &Range<usize>, width: usize| {
            (run.rows.start + block.start) * width..(run.rows.start + block.end) * width
        };

        let mut weights = vec![0.0; group * entries];
        for block in blocks.clone() {
            let keys = rows.keys.expanded(of_rows(&block, head_dim), &mut scratch);
            for (query, scores) in
                queries.chunks_exact(head_dim).zip(weights.chunks_exact_mut(entries))
            {
                let scores = scores[block.clone()].iter_mut();
                scores
                    .zip(keys.chunks_exact(head_dim))
                    .for_each(|(score, key)| *score = dot(simd, query, key));
            }
        }
        held.finish(call, &run, &mut weights);
        let (mut most, mut totals) = (Vec::with_capacity(group), Vec::with_capacity(group));
        for weights in weights.chunks_exact_mut(entries) {
            let high = highest(simd, weights);
            // Where nothing is seen, the difference would not be a number.
            totals.push(exponentials(simd, weights, high.max(f32::MIN)));
            most.push(high);
        }
        let mut sums = vec![0.0; group * value_dim];
        for block in blocks {
            let values = rows.values.expanded(of_rows(&block, value_dim), &mut scratch);
            let of_heads = sums.chunks_exact_mut(value_dim).zip(weights.chunks_exact(entries));
            for (sums, weights) in of_heads {
                add_all(simd, sums, &weights[block.clone()], values);
            }
        }
        Part { run, weights, highest: most, totals, sums }
    }
}

/// Attention of one query per head over entries in buffers; `None` where columns are positions,
/// which Burn's tensor operations know.
pub(super) fn dense(input: &DecodeInput, kv: &DenseKv) -> Result<Option<DecodeOutput>> {
    let DenseKv { keys, values, entries, counts, visibility } = kv;
    let [batch, kv_heads, capacity, head_dim] = keys.dims();
    INPUT.shape("values", values.dims(), [batch, kv_heads, capacity, values.dims()[3]])?;
    INPUT.value("entries", *entries, *entries <= capacity, format!("at most {capacity}"))?;
    let positions = match visibility {
        Visibility::Causal if input.scoring.reads_positions() => return Ok(None),
        Visibility::Causal => None,
        Visibility::Positions { queries, entries: of_entries } => {
            let columns = of_entries.dims()[2];
            INPUT.shape("the queries' positions", queries.dims(), [batch, 1, 1])?;
            let expected = [batch, kv_heads, columns.max(*entries)];
            INPUT.shape("the entries' positions", of_entries.dims(), expected)?;
            let (queries, entries) = (INPUT.ints(queries)?, INPUT.ints(of_entries)?);
            Some(Positions { of_list: false, queries, entries, columns })
        }
    };
    let counts = match counts {
        Some(counts) => {
            INPUT.shape("counts", counts.dims(), [batch * kv_heads])?;
            INPUT.at_most("counts", counts, *entries)?
        }
        None => vec![*entries; batch * kv_heads],
    };
    let runs = counts.iter().enumerate().map(|(list, count)| Run {
        list,
        in_list: false,
        rows: list * capacity..list * capacity + count,
        column: 0,
    });
    let held = Held {
        dims: [batch, kv_heads, head_dim, values.dims()[3]],
        list: None,
        rows: Rows::read(keys, values)?,
        positions,
        columns: *entries,
    };
    attend(input, held, runs.collect()).map(Some)
}

/// Attention of one query per head over a list of all heads, and what follows it.
pub(super) fn ragged(input: &DecodeInput, kv: &RaggedKv) -> Result<DecodeOutput> {
    let RaggedKv { keys, values, offsets, width, positions, tail, tail_counts } = kv;
    let [batch, kv_heads, capacity, head_dim] = tail.keys.dims();
    let [total, value_dim] = values.dims();
    let lists = batch * kv_heads;
    INPUT.shape("the keys of the list", keys.dims(), [total, head_dim])?;
    INPUT.shape("values", tail.values.dims(), [batch, kv_heads, capacity, value_dim])?;
    INPUT.shape("offsets", offsets.dims(), [lists + 1])?;
    let fits = tail.entries <= capacity;
    INPUT.value("entries", tail.entries, fits, format!("at most {capacity}"))?;
    let offsets = INPUT.ascending("offsets", offsets, total)?;
    let positions = match positions {
        Some(positions) => {
            INPUT.shape(
                "the positions of the list",
                positions.dims(),
                [batch, kv_heads, *width],
            )?;
            let (queries, entries) = (vec![BEHIND_ALL; batch], INPUT.ints(positions)?);
            Some(Positions { of_list: true, queries, entries, columns: *width })
        }
        None => None,
    };
    let counts = match tail_counts {
        Some(counts) => {
            INPUT.shape("tail_counts", counts.dims(), [lists])?;
            INPUT.at_most("tail_counts", counts, tail.entries)?
        }
        None => vec![tail.entries; lists],
    };
    let mut runs = Vec::with_capacity(2 * lists);
    for (list, (ends, count)) in offsets.windows(2).zip(counts).enumerate() {
        let held = ends[1] - ends[0];
        INPUT.value("entries of a head", held, held <= *width, format!("at most {width}"))?;
        runs.push(Run { list, in_list: true, rows: ends[0]..ends[1], column: width - held });
        let start = list * capacity;
        runs.push(Run { list, in_list: false, rows: start..start + count, column: *width });
    }
    let held = Held {
        dims: [batch, kv_heads, head_dim, value_dim],
        list: Some(Rows::read(keys, values)?),
        rows: Rows::read(&tail.keys, &tail.values)?,
        positions,
        columns: width + tail.entries,
    };
    attend(input, held, runs)
}

/// Attention of one query per head over the runs of a layer.
fn attend(input: &DecodeInput, held: Held, runs: Vec<Run>) -> Result<DecodeOutput> {
    let [batch, kv_heads, head_dim, value_dim] = held.dims;
    INPUT.value("channels of a value", value_dim, value_dim > 0, "1 or more")?;
    let columns = held.columns;
    let call = Call::read(input, INPUT, [batch, kv_heads, head_dim], columns)?;
    let (arch, group) = (Arch::new(), call.group);
    let runs: Vec<Run> = runs.into_iter().flat_map(Run::parts).collect();
    let attend = |run| arch.dispatch(Attend { call: &call, held: &held, run });
    let parts: Vec<Part> = runs.into_par_iter().map(attend).collect();

    let heads = batch * kv_heads * group;
    let mut output = vec![0.0; heads * value_dim];
    let mut weights = vec![0.0; if input.weights { heads * columns } else { 0 }];
    for parts in parts.chunk_by(|a, b| a.run.list == b.run.list) {
        let list = parts[0].run.list;
        let first = list * group;
        for head in 0..group {
            let sink = call.sink(list, head);
            let highest = parts.iter().map(|part| part.highest[head]);
            let highest = highest.fold(sink.unwrap_or(f32::MIN), f32::max);
            let total = parts.iter().map(|part| part.share(head, highest) * part.totals[head]);
            let total = total.sum::<f32>() + sink.map_or(0.0, |sink| (sink - highest).exp());
            if total == 0.0 {
                continue;
            }
            for part in parts {
                let share = part.share(head, highest) / total;
                let sums = &part.sums[head * value_dim..(head + 1) * value_dim];
                let to = &mut output[(first + head) * value_dim..][..value_dim];
                to.iter_mut().zip(sums).for_each(|(to, sum)| *to += share * sum);
                if input.weights {
                    let entries = part.run.rows.len();
                    let to = &mut weights[(first + head) * columns + part.run.column..][..entries];
                    let from = &part.weights[head * entries..(head + 1) * entries];
                    to.iter_mut().zip(from).for_each(|(to, weight)| *to = weight * share);
                }
            }
        }
    }
    Ok(call.answer(output, weights))
}
