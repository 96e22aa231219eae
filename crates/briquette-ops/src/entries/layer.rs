use burn::tensor::{Int, Tensor};

use super::{sharing::Sharing, tracks::Tracks};

/// The entries of a layer: a column a token, and a row of keys and values an entry, which is the same unless tokens
/// [share](Self::sharing).
///
/// Heads that hold fewer than the widest begin with as many fillers, at position −1.
#[derive(Clone, Debug)]
pub struct Entries {
    /// `[batch, kv_heads, rows, head_dim]`, in the cache's type; f32 where numbers were quantized, and where
    /// tokens that share keys were [laid out](crate::laid_out).
    pub keys: Tensor<4>,
    /// `[batch, kv_heads, rows, head_dim]`, in the cache's type; f32 where numbers were quantized.
    pub values: Tensor<4>,
    /// The position each token was written at, ascending in a row, `[batch, kv_heads, columns]`; −1 is padding.
    pub positions: Tensor<3, Int>,
    /// What has been counted of each token; nothing for those that are new.
    pub tracks: Tracks,
    /// Which tokens share a row of keys and values.
    pub sharing: Option<Sharing>,
}

impl Entries {
    /// Columns.
    pub fn columns(&self) -> usize {
        self.positions.dims()[2]
    }

    /// These entries and behind them those of `new`, of which nothing has been counted yet.
    pub fn followed_by(self, new: Self) -> Self {
        let columns = new.columns();
        let keys = new.keys.cast(self.keys.dtype());
        let values = new.values.cast(self.values.dtype());
        Self {
            keys: Tensor::cat(vec![self.keys, keys], 2),
            values: Tensor::cat(vec![self.values, values], 2),
            positions: Tensor::cat(vec![self.positions, new.positions], 2),
            tracks: self.tracks.widened(columns),
            sharing: self.sharing.map(|sharing| sharing.followed_by(columns)),
        }
    }

    /// Counts the tokens behind those that share a row anew, from the tokens of each batch row and kv
    /// head in `lengths`: those of a store include padding.
    pub fn with_lengths(mut self, lengths: &[usize]) -> Self {
        if let Some(sharing) = &mut self.sharing {
            sharing.own =
                lengths.iter().zip(&sharing.tokens).map(|(all, known)| all - known).collect();
        }
        self
    }
}
