use burn::tensor::{DType, Int, Tensor};

use crate::entries::{iota, offset_per_head, slice_per_head};

/// Clusters of the tokens of each head, and the number of tokens that have come since.
#[derive(Clone, Debug)]
pub struct ExtendInput<'a> {
    /// Cluster index of each token within its head, `[batch, kv_heads, width]`. Heads with fewer
    /// tokens begin with padding, here and in all other fields.
    pub cluster_of_token: Tensor<3, Int>,
    /// Factor of the row of each token's cluster, f32, `[batch, kv_heads, width]`.
    pub norms: Tensor<3>,
    /// Index of the representative of each cluster among the tokens of its head,
    /// `[batch, kv_heads, clusters]`.
    pub representatives: Tensor<3, Int>,
    /// Tokens in clusters, clusters, and tokens behind them, per batch row and kv head, rows first.
    pub counts: &'a [[usize; 3]],
    /// Number of columns of all tokens.
    pub columns: usize,
    /// Number of rows of all clusters and of the tokens behind them.
    pub rows: usize,
}

/// Rows of all tokens. Values at padding do not matter.
#[derive(Clone, Debug)]
pub struct ExtendOutput {
    /// The row of each token, `[batch, kv_heads, columns]`.
    pub rows: Tensor<3, Int>,
    /// Factor of the row, f32, 1 for a token in no cluster, `[batch, kv_heads, columns]`.
    pub norms: Tensor<3>,
    /// The token that represents each row, `[batch, kv_heads, rows]`.
    pub representatives: Tensor<3, Int>,
}

/// Aligns the clustered tokens with the columns and rows, and appends the tokens behind them.
pub(super) fn extend(input: ExtendInput<'_>) -> ExtendOutput {
    let ExtendInput { cluster_of_token, norms, representatives, counts, columns, rows } = input;
    let [batch, heads, width] = cluster_of_token.dims();
    let height = representatives.dims()[2];
    let device = cluster_of_token.device();
    let most = counts.iter().map(|[_, _, unclustered]| *unclustered).max().unwrap_or(0);
    let of_heads = |f: &dyn Fn([i64; 3]) -> i64| {
        counts.iter().map(|count| f(count.map(|n| n as i64))).collect()
    };
    let signed = |x: usize| x as i64;
    // Padding of a head without tokens stays within the columns, too.
    let by_clusters: Vec<i64> =
        of_heads(&|[_, clusters, unclustered]| signed(rows) - (clusters + unclustered).max(1));
    let by_tokens: Vec<i64> =
        of_heads(&|[tokens, _, unclustered]| signed(columns) - (tokens + unclustered).max(1));
    let extended = |x: Tensor<3, Int>, all: usize| match most {
        0 => x,
        _ => {
            let first: Vec<i64> = of_heads(&|[_, _, unclustered]| signed(all) - unclustered);
            let behind = offset_per_head(iota([batch, heads, most], &device), &first);
            Tensor::cat(vec![x, behind], 2)
        }
    };
    let norms = match most {
        0 => norms,
        _ => {
            let ones = Tensor::ones([batch, heads, most], (&device, DType::F32));
            Tensor::cat(vec![norms, ones], 2)
        }
    };
    let in_line = |width: usize, all: usize| -> Vec<i64> {
        of_heads(&|[_, _, unclustered]| signed(width) + unclustered - signed(all))
    };
    let of_columns = extended(offset_per_head(cluster_of_token, &by_clusters), rows);
    let of_rows = extended(offset_per_head(representatives, &by_tokens), columns);
    ExtendOutput {
        rows: slice_per_head(of_columns, &in_line(width, columns), columns),
        norms: slice_per_head(norms, &in_line(width, columns), columns),
        representatives: slice_per_head(of_rows, &in_line(height, rows), rows),
    }
}
