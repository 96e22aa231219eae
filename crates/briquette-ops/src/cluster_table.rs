use burn::tensor::{DType, Int, Tensor};

use crate::{
    cluster::{ClusterOps, ClusterOrder, ExtendInput, ExtendOutput},
    entries::{Clustering, Entries, iota, offset_per_head},
    error::Result,
};

/// Row view of a [`Clustering`]: the row of each token, by the columns and rows of [`Entries`].
#[derive(Clone, Debug)]
pub struct ClusterTable {
    /// Number of rows that are entries per batch row and kv head: the last.
    pub row_counts: Vec<usize>,
    /// The row of each token, any at padding, `[batch, kv_heads, columns]`.
    pub rows: Tensor<3, Int>,
    /// Factor of the row, f32, `[batch, kv_heads, columns]`.
    pub norms: Tensor<3>,
    /// The column of the representative of each row, any at padding, `[batch, kv_heads, rows]`.
    pub representatives: Tensor<3, Int>,
}

impl ClusterTable {
    /// Returns the table of tokens that are each in a row of their own, the last `lengths` columns
    /// of each head.
    pub fn of_unclustered(entries: &Entries, lengths: &[usize]) -> Self {
        let dims = entries.positions.dims();
        let device = entries.positions.device();
        let place = iota(dims, &device);
        Self {
            row_counts: lengths.to_vec(),
            rows: place.clone(),
            norms: Tensor::ones(dims, (&device, DType::F32)),
            representatives: place,
        }
    }

    /// Returns the table of clustered entries; `None` if each token has a row of its own.
    ///
    /// # Errors
    /// As [`ClusterOps::extend`].
    pub fn of(entries: &Entries, ops: &(impl ClusterOps + ?Sized)) -> Result<Option<Self>> {
        let Some(clustering) = entries.clustering.as_ref() else { return Ok(None) };
        let Clustering { clustered_tokens, cluster_counts, unclustered, cluster_of_token, .. } =
            clustering;
        let Clustering { norms, representatives, .. } = clustering;
        let heads = clustered_tokens.iter().zip(cluster_counts).zip(unclustered);
        let counts: Vec<[usize; 3]> = heads
            .map(|((&tokens, &clusters), &unclustered)| [tokens, clusters, unclustered])
            .collect();
        let ExtendOutput { rows, norms, representatives } = ops.extend(ExtendInput {
            cluster_of_token: cluster_of_token.clone(),
            norms: norms.clone(),
            representatives: representatives.clone(),
            counts: &counts,
            columns: entries.positions.dims()[2],
            rows: entries.keys.dims()[2],
        })?;
        Ok(Some(Self { row_counts: clustering.row_counts(), rows, norms, representatives }))
    }

    /// Returns the clustering that a store takes in, of the last `counts` columns of each head.
    /// `positions` are −1 at columns without a token, which come first.
    ///
    /// # Errors
    /// As [`ClusterOps::sort_by_cluster`].
    pub fn into_clustering(
        self,
        positions: &Tensor<3, Int>,
        counts: &[usize],
        ops: &(impl ClusterOps + ?Sized),
    ) -> Result<Clustering> {
        let (columns, rows) = (self.rows.dims()[2], self.representatives.dims()[2]);
        let back = |counts: &[usize], width: usize| -> Vec<i64> {
            counts.iter().map(|&count| count as i64 - width as i64).collect()
        };
        let nothing = positions.clone().lower_scalar(0);
        let cluster_of_token = offset_per_head(self.rows, &back(&self.row_counts, rows));
        let clusters = cluster_of_token.clone().mask_fill(nothing, -1);
        let ClusterOrder { tokens_by_cluster, padding_columns, .. } =
            ops.sort_by_cluster(clusters, rows)?;
        Ok(Clustering {
            clustered_tokens: counts.to_vec(),
            unclustered: vec![0; counts.len()],
            cluster_of_token: cluster_of_token.clamp_min(0),
            norms: self.norms,
            representatives: offset_per_head(self.representatives, &back(counts, columns))
                .clamp_min(0),
            cluster_counts: self.row_counts,
            tokens_by_cluster,
            padding_columns,
        })
    }
}
