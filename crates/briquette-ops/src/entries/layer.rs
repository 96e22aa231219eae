use burn::tensor::{Int, Tensor};

use super::{clustering::Clustering, statistics::AttentionStatistics};

/// The entries of a layer: a column a token, and a row of keys and values an entry, which is the
/// same unless tokens [share](Self::clustering).
///
/// Heads that hold fewer than the widest begin with as many fillers, at position −1.
#[derive(Clone, Debug)]
pub struct Entries {
    /// `[batch, kv_heads, rows, head_dim]`, in the cache's type; f32 where numbers were quantized,
    /// and where tokens that share keys were [expanded](crate::expand_clusters).
    pub keys: Tensor<4>,
    /// `[batch, kv_heads, rows, head_dim]`, in the cache's type; f32 where numbers were quantized.
    pub values: Tensor<4>,
    /// The position each token was written at, ascending in a row, `[batch, kv_heads, columns]`; −1
    /// is padding.
    pub positions: Tensor<3, Int>,
    /// Attention statistics of each token; none for those that are new.
    pub tracks: AttentionStatistics,
    /// Which tokens share a row of keys and values.
    pub clustering: Option<Clustering>,
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
            clustering: self.clustering.map(|clustering| clustering.followed_by(columns)),
        }
    }

    /// Sets the number of unclustered tokens from `lengths`, the number of tokens of each batch row
    /// and kv head: in the entries of a store it includes padding.
    pub fn with_lengths(mut self, lengths: &[usize]) -> Self {
        if let Some(clustering) = &mut self.clustering {
            clustering.unclustered = lengths
                .iter()
                .zip(&clustering.clustered_tokens)
                .map(|(length, clustered)| length - clustered)
                .collect();
        }
        self
    }
}
