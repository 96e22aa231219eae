use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};

use super::assign::nothing_at;
use crate::entries::{AttentionStatistics, iota, offset_per_head};

/// Tokens that stay, and the metadata of all tokens.
#[derive(Clone, Debug)]
pub struct ReorderTokensInput<'a> {
    /// Columns of the tokens that stay, any at padding, `[batch, kv_heads, width]`.
    pub columns: Tensor<3, Int>,
    /// Cluster index of each of them, −1 for none and at padding, `[batch, kv_heads, width]`.
    pub clusters: Tensor<3, Int>,
    /// Their new order, as indices into `columns`, `[batch, kv_heads, width]`.
    pub order: Tensor<3, Int>,
    /// Number of tokens that stay per batch row and kv head, rows first.
    pub counts: &'a [usize],
    /// Old column of the representative of each cluster, any at padding,
    /// `[batch, kv_heads, clusters]`. A representative stays, in its cluster.
    pub representatives: Tensor<3, Int>,
    /// Number of clusters per batch row and kv head, rows first.
    pub cluster_counts: &'a [usize],
    /// The old row of each token, `[batch, kv_heads, columns]`.
    pub rows: Tensor<3, Int>,
    /// The old factor of that row, f32, `[batch, kv_heads, columns]`.
    pub norms: Tensor<3>,
    /// The length of each row, f32, `[batch, kv_heads, rows]`.
    pub lengths: Tensor<3>,
    /// `[batch, kv_heads, columns]`
    pub positions: Tensor<3, Int>,
    /// Attention statistics of each token.
    pub statistics: AttentionStatistics,
}

/// Metadata of the tokens that stay.
#[derive(Clone, Debug)]
pub struct ReorderTokensOutput {
    /// −1 where a token is in no cluster, `[batch, kv_heads, width]`.
    pub positions: Tensor<3, Int>,
    /// Cluster index of each token, 0 where it is in none, `[batch, kv_heads, width]`.
    pub cluster_of_token: Tensor<3, Int>,
    /// Index of the representative of each cluster among the tokens of its head; 0 at padding.
    /// `[batch, kv_heads, clusters]`
    pub representatives: Tensor<3, Int>,
    /// Factor of each token's cluster, whose row has unit length, f32, `[batch, kv_heads, width]`;
    /// 0 in no cluster.
    pub norms: Tensor<3>,
    /// 0 in no cluster.
    pub statistics: AttentionStatistics,
}

/// Reorders by one gather after another.
pub(super) fn reorder_tokens(input: ReorderTokensInput<'_>) -> ReorderTokensOutput {
    let ReorderTokensInput {
        columns,
        clusters,
        order,
        counts,
        representatives,
        cluster_counts,
        ..
    } = input;
    let ReorderTokensInput { rows, norms, lengths, positions, statistics, .. } = input;
    let [batch, heads, width] = columns.dims();
    let device = columns.device();
    let cluster_of_token = clusters.gather(2, order.clone());
    let columns = columns.gather(2, order);
    let nothing = cluster_of_token.clone().lower_scalar(0);
    let norms = norms * lengths.gather(2, rows.clone());
    let norms = norms.gather(2, columns.clone()).mask_fill(nothing.clone(), 0.0);
    let statistics = statistics.map(|statistics| {
        let [rows, of_heads, _] = statistics.dims();
        let like = |x: Tensor<3, Int>| {
            let x: Tensor<5, Int> = x.reshape([1, batch, heads, 1, width]);
            let all = x.expand([rows / batch, batch, heads, of_heads / heads, width]);
            all.reshape([rows, of_heads, width])
        };
        let nothing = like(nothing.clone().int()).bool();
        statistics.gather(2, like(columns.clone())).mask_fill(nothing, 0.0)
    });

    // Where the columns of representatives have gone.
    let place = iota([batch, heads, width], &device).mask_fill(nothing.clone(), 0);
    let gone = Tensor::<3, Int>::zeros(rows.dims(), &device);
    let gone = gone.scatter(2, columns.clone(), place, IndexingUpdateOp::Add);
    let padding = nothing_at(cluster_counts, &representatives);
    let back: Vec<i64> = counts.iter().map(|&count| count as i64 - width as i64).collect();
    let representatives = gone.gather(2, representatives.clamp(0, rows.dims()[2] as i64 - 1));
    let representatives = offset_per_head(representatives, &back).clamp_min(0);
    let representatives = match padding {
        None => representatives,
        Some(padding) => representatives.mask_fill(padding, 0),
    };
    ReorderTokensOutput {
        positions: positions.gather(2, columns).mask_fill(nothing, -1),
        cluster_of_token: cluster_of_token.clamp_min(0),
        representatives,
        norms: norms.cast(DType::F32),
        statistics,
    }
}
