//! Position encodings, applied by the cache.
//!
//! A policy may re-count positions inside the cache, or compare keys before they are rotated, so the
//! model hands over queries and keys *before* their positions are encoded and the cache encodes them.

mod rotary;

use std::fmt::Debug;

use burn::tensor::{Device, Int, Tensor};

pub use rotary::RotaryEmbedding;

use crate::{
    Result,
    ops::{Ops, RotaryTables},
};

/// Encodes positions into queries and keys.
pub trait PositionEncoding: Debug + Send + Sync {
    /// Encodes `positions` into `x`.
    ///
    /// # Shapes
    /// - `x`: `[batch, heads, tokens, head_dim]`
    /// - `positions`: `[batch, heads or 1, tokens]`, within `-1..max_positions`; at −1 stands padding,
    ///   whose result does not matter as long as it is finite
    /// - returns `[batch, heads, tokens, head_dim]`, of the type of `x`
    fn encode(&self, x: Tensor<4>, positions: Tensor<3, Int>) -> Tensor<4>;

    /// The rotary embedding this is, if it is one, so that kernels can encode rows, or keys as they read them. Others
    /// are encoded by [`encode`](Self::encode).
    fn rotary(&self) -> Option<&RotaryEmbedding> {
        None
    }

    /// One more than the highest position that can be encoded, or `None` if there is no end.
    fn max_positions(&self) -> Option<usize>;

    /// Checks that heads of `head_dim` channels on `device` can be encoded. A cache asks before every call.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter) or
    /// [`Error::WrongDevice`](crate::Error::WrongDevice).
    fn check(&self, head_dim: usize, device: &Device) -> Result<()> {
        let _ = (head_dim, device);
        Ok(())
    }
}

/// What `encoding` makes of rows, by these operations where it is a rotary embedding.
pub(crate) fn encode(
    encoding: &dyn PositionEncoding,
    x: Tensor<4>,
    positions: Tensor<3, Int>,
    ops: &dyn Ops,
) -> Result<Tensor<4>> {
    match encoding.rotary() {
        Some(rotary) => {
            let (cosines, sines) = rotary.tables();
            Ok(ops.rotate(x, RotaryTables { cosines, sines, positions })?)
        }
        None => Ok(encoding.encode(x, positions)),
    }
}

/// For models that encode positions elsewhere, or not at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPositionEncoding;

impl PositionEncoding for NoPositionEncoding {
    fn encode(&self, x: Tensor<4>, _positions: Tensor<3, Int>) -> Tensor<4> {
        x
    }

    fn max_positions(&self) -> Option<usize> {
        None
    }
}
