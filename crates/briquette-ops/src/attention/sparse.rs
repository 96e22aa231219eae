use std::ops::Range;

use burn::tensor::{DType, Tensor, TensorData, activation::softmax};

use super::{
    estimate::{Places, picked},
    pattern::HeadPattern,
    prefill::{AttentionInput, AttentionOutput, attention_by},
    seen::Seen,
    tiles::SparseTiles,
    weights::INVISIBLE,
};
use crate::{
    error::{OpError, Result},
    product::product,
};

/// Attention over a prompt of which heads compute a part of the weights each.
#[derive(Clone, Debug)]
pub struct SparseAttentionInput {
    /// The attention.
    pub attention: AttentionInput,
    /// The pattern of each query head, `[query_heads]`.
    pub patterns: Vec<HeadPattern>,
}

impl SparseAttentionInput {
    /// The weights that are to be computed, from an estimate of all of them, in the form in which a
    /// kernel reads them.
    ///
    /// # Errors
    /// [`OpError`] if there are not as many patterns as heads, or one of them cannot be.
    pub fn tiles(&self) -> Result<SparseTiles> {
        let (places, seen) = self.seen()?;
        Ok(SparseTiles::new(&places, &seen))
    }

    /// The positions of queries and entries, and the part of the weights that each head computes.
    fn seen(&self) -> Result<(Places, Vec<Seen>)> {
        let Self { attention, patterns } = self;
        let heads = attention.queries.dims()[1];
        if patterns.len() != heads {
            return Err(OpError::Shape {
                operation: "sparse attention",
                tensor: "patterns",
                found: vec![patterns.len()],
                expected: vec![heads],
            });
        }
        for (head, pattern) in patterns.iter().enumerate() {
            if let Some(expected) = pattern.breaks() {
                return Err(OpError::Value {
                    operation: "sparse attention",
                    what: "the head whose pattern cannot be",
                    found: head,
                    expected: expected.into(),
                });
            }
        }
        let places = Places::of(attention)?;
        let seen = picked(attention, patterns, &places)?;
        Ok((places, seen))
    }
}

/// Attention under the masks of the heads' patterns. It masks and saves nothing: all products are
/// computed.
pub(super) fn sparse_attention(input: SparseAttentionInput) -> Result<AttentionOutput> {
    let (places, seen) = input.seen()?;
    let input = input.attention;
    let heads = input.queries.dims()[1];
    let mut masks = Masks { places: &places, seen: &seen, heads };
    Ok(attention_by(input, |queries, keys, rows, precision| {
        let [batch, heads, count, head_dim] = queries.dims();
        let [_, kv_heads, _, columns] = keys.dims();
        let queries = queries.reshape([batch, kv_heads, heads / kv_heads * count, head_dim]);
        let scores = product(queries, keys, precision).reshape([batch, heads, count, columns]);
        let (bias, counted) = masks.of(rows, columns, batch);
        let on = |data| Tensor::<4>::from_data(data, (&scores.device(), DType::F32));
        let (bias, counted) = (on(bias), on(counted));
        softmax(scores + bias, 3) * counted
    }))
}

/// The masks that are added to scores, made on the host.
struct Masks<'a> {
    places: &'a Places,
    seen: &'a [Seen],
    heads: usize,
}

impl Masks<'_> {
    /// `[batch, query_heads, rows, columns]`, and 0 where a query is padding,
    /// `[batch, 1, rows, 1]`.
    fn of(&mut self, rows: Range<usize>, columns: usize, batch: usize) -> (TensorData, TensorData) {
        let kv_heads = self.places.entries.len() / batch;
        let group = self.heads / kv_heads;
        let count = rows.len();
        let mut bias = Vec::with_capacity(batch * self.heads * count * columns);
        let mut counted = Vec::with_capacity(batch * count);
        for row in 0..batch {
            let queries = &self.places.queries[row][rows.clone()];
            counted.extend(queries.iter().map(|&query| if query < 0 { 0.0_f32 } else { 1.0 }));
            for head in 0..self.heads {
                let seen = &self.seen[row * self.heads + head];
                let entries = &self.places.entries[row * kv_heads + head / group][..columns];
                for &query in queries {
                    bias.extend(entries.iter().enumerate().map(|(column, &entry)| {
                        if seen.sees(query, column, entry) { 0.0 } else { INVISIBLE as f32 }
                    }));
                }
            }
        }
        (
            TensorData::new(bias, [batch, self.heads, count, columns]),
            TensorData::new(counted, [batch, 1, count, 1]),
        )
    }
}
