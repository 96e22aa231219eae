use std::fmt::Debug;

use burn::tensor::Tensor;

#[cfg(feature = "flex")]
use super::host;
use super::{
    decode::{DecodeInput, DecodeOutput},
    prefill::{self, AttentionInput, AttentionOutput},
    rotary::{self, RotaryTables},
    sparse::{self, SparseAttentionInput},
    window::{self, MomentsInput, MomentsOutput, WindowInput},
};
use crate::error::Result;

/// Attention, and the attention weights that entries are scored by.
pub trait AttentionOps: Debug + Send + Sync {
    /// Computes causal attention of new queries over the entries of a layer, with the column sums
    /// that a scorer may need. See [`AttentionInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes or types do not fit.
    fn attention(&self, input: AttentionInput) -> Result<AttentionOutput> {
        #[cfg(feature = "flex")]
        if let Some(found) = host::decode(&DecodeInput::of(&input))? {
            return Ok(found.with_column_sums(input.column_sums, input.column_squares));
        }
        Ok(prefill::attention(input))
    }

    /// Computes attention as [`attention`](Self::attention) does, from the part of the weights that
    /// the pattern of each query head picks. See [`HeadPattern`](crate::HeadPattern).
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes, types or the numbers of a pattern do not fit.
    fn sparse_attention(&self, input: SparseAttentionInput) -> Result<AttentionOutput> {
        sparse::sparse_attention(input)
    }

    /// Computes attention of one query per head, or a few, over keys and values read in their
    /// layout; `None` where there is no kernel for it, and the entries must be padded to a
    /// rectangle first. The host reads entries that tokens share, and pages, as they lie. See
    /// [`KvLayout`](crate::KvLayout) for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes or types do not fit.
    fn decode(&self, input: &DecodeInput) -> Result<Option<DecodeOutput>> {
        #[cfg(feature = "flex")]
        return host::decode(input);
        #[cfg(not(feature = "flex"))]
        {
            let _ = input;
            Ok(None)
        }
    }

    /// Rotates rows by their positions, `[batch, heads, tokens, head_dim]`. See [`RotaryTables`].
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn rotate(&self, x: Tensor<4>, rotary: RotaryTables) -> Result<Tensor<4>> {
        #[cfg(feature = "flex")]
        if let Some(rotated) = host::rotate(&x, &rotary)? {
            return Ok(rotated);
        }
        Ok(rotary::rotate(x, rotary))
    }

    /// Rotates queries, `[batch, query_heads, tokens, head_dim]`, and keys,
    /// `[batch, kv_heads, tokens, head_dim]`, as [`rotate`](Self::rotate) does. Positions are
    /// `[batch, 1, tokens]`.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn rotate_both(
        &self,
        queries: Tensor<4>,
        keys: Tensor<4>,
        rotary: RotaryTables,
    ) -> Result<(Tensor<4>, Tensor<4>)> {
        Ok((self.rotate(queries, rotary.clone())?, self.rotate(keys, rotary)?))
    }

    /// Computes the attention weights of a few queries over the entries of a layer,
    /// `[batch, query_heads, queries, entries]`, f32, zero where the query is padding.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn window_weights(&self, input: WindowInput) -> Result<Tensor<4>> {
        Ok(window::window_weights(input))
    }

    /// Computes sums over the attention weights that a few queries give to each entry, without
    /// keeping the weights. See [`MomentsInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn window_moments(&self, input: MomentsInput) -> Result<MomentsOutput> {
        let weights = self.window_weights(input.window)?;
        Ok(window::moments(weights, &input.own, input.deviations, input.entropies))
    }
}
