use std::fmt::Debug;

use burn::tensor::Tensor;

use super::{
    decode::{DecodeInput, DecodeOutput},
    prefill::{self, AttentionInput, AttentionOutput},
    rotary::{self, RotaryTables},
    sparse::{self, SparseAttentionInput},
    window::{self, MomentsInput, MomentsOutput, WindowInput},
};
use crate::error::Result;

/// Attention and what it is scored by.
pub trait AttentionOps: Debug + Send + Sync {
    /// Causal attention of new queries over the entries of a layer, with the column sums a scorer
    /// may want. See [`AttentionInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes or types do not fit.
    fn attention(&self, input: AttentionInput) -> Result<AttentionOutput> {
        Ok(prefill::attention(input))
    }

    /// The same with a part of the weights, by a pattern for each head. See
    /// [`HeadPattern`](crate::HeadPattern).
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes, types or the numbers of a pattern do not fit.
    fn sparse_attention(&self, input: SparseAttentionInput) -> Result<AttentionOutput> {
        sparse::sparse_attention(input)
    }

    /// Attention of one query a head, or a few, over keys and values read as they lie; `None` where
    /// there is no kernel for it, and the entries are to be padded to a rectangle first. See
    /// [`KvLayout`](crate::KvLayout) for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes or types do not fit.
    fn decode(&self, input: &DecodeInput) -> Result<Option<DecodeOutput>> {
        let _ = input;
        Ok(None)
    }

    /// Rows turned to their positions, `[batch, heads, tokens, head_dim]`. See [`RotaryTables`].
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn rotate(&self, x: Tensor<4>, rotary: RotaryTables) -> Result<Tensor<4>> {
        Ok(rotary::rotate(x, rotary))
    }

    /// The attention weights of a few queries over the entries of a layer:
    /// `[batch, query_heads, queries, entries]`, f32, zero where the query is padding.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn window_weights(&self, input: WindowInput) -> Result<Tensor<4>> {
        Ok(window::window_weights(input))
    }

    /// For each entry sums over a few queries of what their attention weights are, so that the
    /// weights need not be kept. See [`MomentsInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn window_moments(&self, input: MomentsInput) -> Result<MomentsOutput> {
        let weights = self.window_weights(input.window)?;
        Ok(window::moments(weights, &input.own, input.deviations, input.entropies))
    }
}
