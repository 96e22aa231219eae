use burn::tensor::{Int, Tensor};

use super::{clustering::Clustering, statistics::AttentionStatistics};

/// Entries of a layer: one column per token, and one row of keys and values per token, or per
/// cluster where tokens [share](Self::clustering) rows.
///
/// Heads with fewer entries than the longest begin with padding, at position −1.
#[derive(Clone, Debug)]
pub struct Entries {
    /// Keys, `[batch, kv_heads, rows, head_dim]`, in the cache's type; f32 where numbers were
    /// quantized, and where tokens that share keys were [expanded](crate::expand_clusters).
    pub keys: Tensor<4>,
    /// Values, `[batch, kv_heads, rows, value_dim]`, in the cache's type; f32 where numbers were
    /// quantized.
    pub values: Tensor<4>,
    /// Position that each token was written at, ascending within a head,
    /// `[batch, kv_heads, columns]`; −1 is padding.
    pub positions: Tensor<3, Int>,
    /// Attention statistics of each token; new tokens have none.
    pub statistics: AttentionStatistics,
    /// Clusters of tokens that share a row of keys and values; `None` if each has its own.
    pub clustering: Option<Clustering>,
}

impl Entries {
    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.positions.dims()[2]
    }

    /// Appends the entries of `new`, whose statistics begin at zero.
    pub fn followed_by(self, new: Self) -> Self {
        let columns = new.columns();
        let keys = new.keys.cast(self.keys.dtype());
        let values = new.values.cast(self.values.dtype());
        Self {
            keys: Tensor::cat(vec![self.keys, keys], 2),
            values: Tensor::cat(vec![self.values, values], 2),
            positions: Tensor::cat(vec![self.positions, new.positions], 2),
            statistics: self.statistics.widened(columns),
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
