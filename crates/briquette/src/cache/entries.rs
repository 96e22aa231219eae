use burn::tensor::{Int, Tensor};

use super::Tracks;
use crate::ops::{Ops, Selection};

/// The entries of a layer, one column a token.
///
/// Heads that hold fewer than the widest begin with as many fillers, at position −1.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entries {
    /// `[batch, kv_heads, entries, head_dim]`, in the cache's type; f32 where tokens share keys or numbers were
    /// quantized.
    pub keys: Tensor<4>,
    /// `[batch, kv_heads, entries, head_dim]`, in the cache's type; f32 where numbers were quantized.
    pub values: Tensor<4>,
    /// The position each was written at, ascending in a row, `[batch, kv_heads, entries]`; −1 is padding.
    pub positions: Tensor<3, Int>,
    /// What has been counted of each; nothing for entries that are new.
    pub tracks: Tracks,
    /// Which tokens share the direction of a key and a value.
    pub sharing: Option<Sharing>,
}

/// Which tokens share the direction of their keys, and their values (EMS).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// For each batch row and kv head, and each token it holds, the token at the center of its class: both
    /// counted from the first that is not a filler. A token behind the end of a list is its own center.
    pub centers: Vec<Vec<usize>>,
}

impl Entries {
    /// Columns.
    pub fn columns(&self) -> usize {
        self.positions.dims()[2]
    }

    /// These entries and behind them those of `new`, of which nothing has been counted yet.
    pub(crate) fn followed_by(self, new: Self) -> Self {
        let columns = new.columns();
        let keys = new.keys.cast(self.keys.dtype());
        let values = new.values.cast(self.values.dtype());
        Self {
            keys: Tensor::cat(vec![self.keys, keys], 2),
            values: Tensor::cat(vec![self.values, values], 2),
            positions: Tensor::cat(vec![self.positions, new.positions], 2),
            tracks: self.tracks.widened(columns),
            sharing: self.sharing,
        }
    }

    /// The selected entries. Tokens that shared keep equal keys and values; that they share is forgotten.
    pub fn select(self, selection: &Selection, ops: &dyn Ops) -> Self {
        ops.compact_entries(self, selection)
    }
}
