use std::ops::Range;

use burn::tensor::{DType, Tensor, TensorData};

use super::{
    estimate::{self, Places},
    pattern::HeadPattern,
    prefill::{AttentionInput, AttentionOutput, attention_by},
    sparsity_mask::SparsityMask,
    tiles::SparseTiles,
    weights::INVISIBLE,
};
use crate::{error::Result, host::HostInput, product::product};

const NAME: &str = "sparse attention";

/// Attention over a prompt in which each query head computes a part of its weights.
#[derive(Clone, Debug)]
pub struct SparseAttentionInput {
    /// Queries, keys and values.
    pub attention: AttentionInput,
    /// The pattern of each query head, `[query_heads]`.
    pub patterns: Vec<HeadPattern>,
}

impl SparseAttentionInput {
    /// Returns the weights to compute, picked from an estimate of all of them, in the form that a
    /// kernel reads.
    ///
    /// # Errors
    /// [`OpError::Shape`](crate::OpError::Shape) if there are not as many patterns as
    /// query heads, [`OpError::Value`](crate::OpError::Value) if the numbers of a pattern break its
    /// conditions ([`HeadPattern::breaks`]), or if queries see a window,
    /// [`OpError::Execution`](crate::OpError::Execution) if the device failed.
    pub fn tiles(&self) -> Result<SparseTiles> {
        let (places, masks) = self.masks()?;
        Ok(SparseTiles::new(&places, &masks))
    }

    /// The positions of queries and entries, and the mask of each head.
    fn masks(&self) -> Result<(Places, Vec<SparsityMask>)> {
        let Self { attention, patterns } = self;
        let heads = attention.queries.dims()[1];
        let input = HostInput(NAME);
        input.shape("patterns", [patterns.len()], [heads])?;
        for (head, pattern) in patterns.iter().enumerate() {
            if let Some(expected) = pattern.breaks() {
                input.value("the head whose pattern cannot be", head, false, expected)?;
            }
        }
        if let Some(window) = attention.scoring.window {
            input.value("the window", window.size(), false, "none where heads have patterns")?;
        }
        let places = Places::of(attention)?;
        let masks = estimate::masks(attention, patterns, &places)?;
        Ok((places, masks))
    }
}

/// Attention under the masks of the heads' patterns. It saves no work: all products are computed.
pub(super) fn sparse_attention(input: SparseAttentionInput) -> Result<AttentionOutput> {
    let (places, masks) = input.masks()?;
    let input = input.attention;
    let (heads, scoring) = (input.queries.dims()[1], input.scoring.clone());
    let slopes =
        scoring.slopes.as_ref().map(|slopes| HostInput(NAME).floats(slopes)).transpose()?;
    let mut masks = Masks { places: &places, of_heads: &masks, heads, slopes };
    Ok(attention_by(input, |queries, keys, rows, precision| {
        let [batch, heads, count, head_dim] = queries.dims();
        let [_, kv_heads, _, columns] = keys.dims();
        let queries = queries.reshape([batch, kv_heads, heads / kv_heads * count, head_dim]);
        let scores = product(queries, keys, precision).reshape([batch, heads, count, columns]);
        let scores = scoring.capped(scores);
        let (bias, counted) = masks.of(rows, columns, batch);
        let on = |data| Tensor::<4>::from_data(data, (&scores.device(), DType::F32));
        let (bias, counted) = (on(bias), on(counted));
        scoring.softmax(scores + bias) * counted
    }))
}

/// Masks of all heads, turned on the host into numbers that are added to scores.
struct Masks<'a> {
    places: &'a Places,
    of_heads: &'a [SparsityMask],
    heads: usize,
    /// The slope of each query head.
    slopes: Option<Vec<f32>>,
}

impl Masks<'_> {
    /// Numbers to add to the scores of queries `rows`, `[batch, query_heads, rows, columns]`, and a
    /// factor that is 0 where a query is padding and 1 elsewhere, `[batch, 1, rows, 1]`.
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
                let mask = &self.of_heads[row * self.heads + head];
                let entries = &self.places.entries[row * kv_heads + head / group][..columns];
                let slope = self.slopes.as_ref().map(|slopes| slopes[head]);
                for &query in queries {
                    bias.extend(entries.iter().enumerate().map(|(column, &entry)| {
                        match mask.sees(query, column, entry) {
                            true => slope.map_or(0.0, |slope| slope * (entry - query) as f32),
                            false => INVISIBLE as f32,
                        }
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
