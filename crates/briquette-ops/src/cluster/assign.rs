use burn::tensor::{Bool, IndexingUpdateOp, Int, Tensor};

use crate::entries::{iota, offset_per_head, padding_mask};

/// Tokens, the rows that they belong to, and the clusters that the rows go to.
#[derive(Clone, Debug)]
pub struct AssignClustersInput<'a> {
    /// The row of each token, `[batch, kv_heads, columns]`.
    pub rows: Tensor<3, Int>,
    /// Number of rows.
    pub height: usize,
    /// Rows that become clusters, ascending per head, after its padding,
    /// `[batch, kv_heads, clusters]`.
    pub kept_rows: Tensor<3, Int>,
    /// Number of clusters per batch row and kv head, rows first.
    pub cluster_counts: &'a [usize],
    /// Rows that may be merged into clusters; all other rows leave.
    pub merged: Option<MergedRows<'a>>,
    /// The token that represents each cluster, any at padding, `[batch, kv_heads, clusters]`.
    pub representatives: Tensor<3, Int>,
    /// Position of each token, −1 at padding, `[batch, kv_heads, columns]`.
    pub positions: Tensor<3, Int>,
    /// Scores of the tokens, f32, `[batch, kv_heads, columns]`.
    pub scores: Tensor<3>,
}

/// Rows that are merged into the cluster that they are most similar to.
#[derive(Clone, Debug)]
pub struct MergedRows<'a> {
    /// The rows, ascending per head, after its padding, `[batch, kv_heads, merged]`.
    pub rows: Tensor<3, Int>,
    /// Number of these rows per batch row and kv head, rows first.
    pub counts: &'a [usize],
    /// Nearest cluster of each row, `[batch, kv_heads, merged]`.
    pub nearest: Tensor<3, Int>,
    /// Number of padding rows before each head's first cluster in `nearest`; subtracted from its
    /// indices.
    pub cluster_offset: &'a [usize],
    /// Similarity to the nearest cluster, f32, `[batch, kv_heads, merged]`.
    pub similarity: Tensor<3>,
    /// Similarity above which a row is merged.
    pub threshold: f64,
}

/// The clusters of tokens, and the ranks that they are selected by.
#[derive(Clone, Debug)]
pub struct AssignClustersOutput {
    /// Cluster index of each token, −1 for none, `[batch, kv_heads, columns]`.
    pub clusters: Tensor<3, Int>,
    /// Rank of each token: `f32::MAX` for a representative, its score for the others, `f32::MIN`
    /// for those in no cluster. `[batch, kv_heads, columns]`
    pub ranks: Tensor<3>,
}

/// Mask of the padding of `[batch, heads, width]`, if heads have `counts` entries; `None` if there
/// is no padding.
pub(super) fn nothing_at(counts: &[usize], like: &Tensor<3, Int>) -> Option<Tensor<3, Bool>> {
    let width = like.dims()[2];
    let differ = counts.iter().any(|&count| count != width);
    differ.then(|| {
        padding_mask(counts.iter().map(|count| width - count), like.dims(), &like.device())
    })
}

/// Cluster of each row, counted from 1; 0 for none. `[batch, kv_heads, rows]`
fn cluster_of_rows(input: &AssignClustersInput<'_>) -> Tensor<3, Int> {
    let AssignClustersInput { rows, height, kept_rows, cluster_counts, merged, .. } = input;
    let [batch, heads, width] = kept_rows.dims();
    let device = rows.device();
    // No two go to one place, and padding counts nothing.
    let add = IndexingUpdateOp::Add;
    let first: Vec<i64> =
        cluster_counts.iter().map(|&count| 1 + count as i64 - width as i64).collect();
    let number = offset_per_head(iota([batch, heads, width], &device), &first).clamp_min(0);
    let cluster = Tensor::<3, Int>::zeros([batch, heads, *height], &device);
    let cluster = cluster.scatter(2, kept_rows.clone(), number, add);
    let Some(merged) = merged else { return cluster };
    let MergedRows { rows, counts, nearest, cluster_offset, similarity, threshold } = merged;
    let first: Vec<i64> = cluster_offset.iter().map(|&offset| 1 - offset as i64).collect();
    let stays = similarity.clone().greater_scalar(*threshold).bool_not();
    let stays = match nothing_at(counts, rows) {
        None => stays,
        Some(padding) => stays.bool_or(padding),
    };
    let number = offset_per_head(nearest.clone(), &first).mask_fill(stays, 0);
    cluster.scatter(2, rows.clone(), number, add)
}

/// Assigns clusters by tensor operations, with a mark at each representative.
pub(super) fn assign_clusters(input: AssignClustersInput<'_>) -> AssignClustersOutput {
    let cluster = cluster_of_rows(&input);
    let AssignClustersInput { rows, cluster_counts, representatives, positions, scores, .. } =
        input;
    let dims = rows.dims();
    let nothing = positions.lower_scalar(0);
    let clusters = cluster.gather(2, rows).mask_fill(nothing, 0).sub_scalar(1);
    let device = clusters.device();
    let one = Tensor::ones(representatives.dims(), &device);
    let (representatives, one) = match nothing_at(cluster_counts, &representatives) {
        None => (representatives, one),
        Some(padding) => (representatives.mask_fill(padding.clone(), 0), one.mask_fill(padding, 0)),
    };
    let is_representative = Tensor::<3, Int>::zeros(dims, &device);
    let is_representative =
        is_representative.scatter(2, representatives, one, IndexingUpdateOp::Add);
    let ranks = scores.mask_fill(is_representative.greater_scalar(0), f32::MAX);
    let ranks = ranks.mask_fill(clusters.clone().lower_scalar(0), f32::MIN);
    AssignClustersOutput { clusters, ranks }
}
