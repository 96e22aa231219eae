use burn::tensor::{Int, Tensor};

/// Clusters of tokens that share a key direction and a value (EMS): the key of a token is its norm
/// times the row of its cluster.
///
/// It describes the first tokens of each head. Only the device knows how many of them are still
/// there: columns without a token have position −1 and come first. Tokens behind them have rows of
/// their own.
#[derive(Clone, Debug)]
pub struct Clustering {
    /// Number of tokens in clusters per batch row and kv head, columns without a token included.
    pub clustered_tokens: Vec<usize>,
    /// Number of clusters per batch row and kv head.
    pub cluster_counts: Vec<usize>,
    /// Number of tokens behind them that are in no cluster, per batch row and kv head.
    pub unclustered: Vec<usize>,
    /// Cluster index of each token within its head, `[batch, kv_heads, columns]`.
    pub cluster_of_token: Tensor<3, Int>,
    /// Factor of the row of each token's cluster, f32, `[batch, kv_heads, columns]`.
    pub norms: Tensor<3>,
    /// Index of the representative of each cluster among the tokens of its head,
    /// `[batch, kv_heads, clusters]`.
    pub representatives: Tensor<3, Int>,
    /// Columns sorted by cluster, those without a token first, `[batch, kv_heads, columns]`.
    pub tokens_by_cluster: Tensor<3, Int>,
    /// Number of columns without a token, `[batch, kv_heads]`.
    pub padding_columns: Tensor<2, Int>,
}

impl Clustering {
    /// Returns the number of rows per batch row and kv head: clusters, and tokens behind them.
    pub fn row_counts(&self) -> Vec<usize> {
        self.cluster_counts
            .iter()
            .zip(&self.unclustered)
            .map(|(clusters, own)| clusters + own)
            .collect()
    }

    /// Adds `tokens` tokens that are in no cluster behind each head.
    pub fn followed_by(mut self, tokens: usize) -> Self {
        self.unclustered.iter_mut().for_each(|own| *own += tokens);
        self
    }
}
