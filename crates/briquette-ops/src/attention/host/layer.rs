//! Attention of a layer, head by head.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::call::Call;
use crate::{
    attention::decode::{DecodeInput, DecodeOutput, Tail},
    error::Result,
    host::{
        HostInput, View,
        rows::{add, dot, softmax},
    },
};

/// The keys and values of a layer. A list is those of a batch row and kv head, which a group of
/// queries reads together: `queries` are their rows, scores and weights a row of columns for each.
pub(super) trait HostKv {
    /// The operation.
    fn input(&self) -> HostInput;

    /// Batch rows, kv heads, and channels of a head.
    fn dims(&self) -> [usize; 3];

    /// Columns of the weights.
    fn columns(&self) -> usize;

    /// The first column of a list that is a token's; the others before it are padding.
    fn first(&self, list: usize) -> usize;

    /// Writes the products of queries with the keys of a list into their columns.
    fn score<S: Simd>(&self, simd: S, list: usize, queries: &[f32], scores: &mut [f32]);

    /// Adds the values of a list, each with the weight in its column, to the rows of `output`.
    fn weigh<S: Simd>(&self, simd: S, list: usize, weights: &[f32], output: &mut [f32]);
}

/// Attention of the queries of a list.
struct Attend<'a, Kv> {
    call: &'a Call<'a>,
    kv: &'a Kv,
    list: usize,
    queries: &'a [f32],
    output: &'a mut [f32],
    weights: &'a mut [f32],
}

impl<Kv: HostKv> WithSimd for Attend<'_, Kv> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { call, kv, list, queries, output, weights } = self;
        let first = kv.first(list);
        kv.score(simd, list, queries, weights);
        for (head, weights) in weights.chunks_mut(kv.columns()).enumerate() {
            let scores = &mut weights[first..];
            call.cap(scores);
            softmax(simd, scores, call.sink(list, head));
        }
        kv.weigh(simd, list, weights, output);
    }
}

/// Attention of one query per head over a layer.
pub(super) fn attend(input: &DecodeInput, kv: &(impl HostKv + Sync)) -> Result<DecodeOutput> {
    let ([batch, kv_heads, head_dim], columns) = (kv.dims(), kv.columns());
    let call = Call::read(input, kv.input(), [batch, kv_heads, head_dim], columns)?;
    let group = call.group;
    let mut output = vec![0.0; call.queries.len()];
    let mut weights = vec![0.0; batch * kv_heads * group * columns];
    let queries = call.queries.par_chunks(group * head_dim);
    let lists = queries.zip(output.par_chunks_mut(group * head_dim));
    let lists = lists.zip(weights.par_chunks_mut(group * columns)).enumerate();
    let arch = Arch::new();
    lists.for_each(|(list, ((queries, output), weights))| {
        arch.dispatch(Attend { call: &call, kv, list, queries, output, weights });
    });
    Ok(call.answer(output, weights))
}

/// The entries of a tail.
pub(super) struct HostTail {
    /// `[lists, capacity, head_dim]`
    keys: View<f32>,
    /// `[lists, capacity, head_dim]`
    values: View<f32>,
    pub(super) entries: usize,
    capacity: usize,
    head_dim: usize,
}

impl HostTail {
    pub(super) fn read(input: HostInput, tail: &Tail) -> Result<Self> {
        let Tail { keys, values, entries } = tail;
        let [_, _, capacity, head_dim] = keys.dims();
        input.shape("tail_values", values.dims(), keys.dims())?;
        input.value("tail", *entries, *entries <= capacity, format!("at most {capacity}"))?;
        let (keys, values) = (input.view(keys)?, input.view(values)?);
        Ok(Self { keys, values, entries: *entries, capacity, head_dim })
    }

    fn rows<'a>(&self, list: usize, rows: &'a [f32]) -> &'a [f32] {
        let start = list * self.capacity * self.head_dim;
        &rows[start..start + self.entries * self.head_dim]
    }

    /// The keys of a list.
    pub(super) fn keys(&self, list: usize) -> impl Iterator<Item = &[f32]> {
        self.rows(list, &self.keys).chunks_exact(self.head_dim)
    }

    /// Writes the products of queries with the keys from `skipped` on into the last of so many
    /// columns.
    #[inline(always)]
    pub(super) fn score<S: Simd>(
        &self,
        simd: S,
        (list, skipped): (usize, usize),
        queries: &[f32],
        scores: &mut [f32],
        columns: usize,
    ) {
        let start = columns - self.entries;
        for (query, scores) in queries.chunks(self.head_dim).zip(scores.chunks_mut(columns)) {
            for (score, key) in scores[start..].iter_mut().zip(self.keys(list)).skip(skipped) {
                *score = dot(simd, query, key);
            }
        }
    }

    /// Adds the values from `skipped` on, with the weights in the last of so many columns.
    #[inline(always)]
    pub(super) fn weigh<S: Simd>(
        &self,
        simd: S,
        (list, skipped): (usize, usize),
        weights: &[f32],
        output: &mut [f32],
        columns: usize,
    ) {
        let start = columns - self.entries;
        for (output, weights) in output.chunks_mut(self.head_dim).zip(weights.chunks(columns)) {
            let values = self.rows(list, &self.values).chunks_exact(self.head_dim);
            for (weight, value) in weights[start..].iter().zip(values).skip(skipped) {
                add(simd, output, *weight, value);
            }
        }
    }
}
