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
    pub entries: Vec<usize>,
    /// The row of each token, any at padding, `[batch, kv_heads, columns]`.
    pub rows: Tensor<3, Int>,
    /// Factor of the row, f32, `[batch, kv_heads, columns]`.
    pub norms: Tensor<3>,
    /// The column of the center of each row, any at padding, `[batch, kv_heads, rows]`.
    pub centers: Tensor<3, Int>,
}

impl ClusterTable {
    /// Returns the table of tokens that are each in a row of their own, the last `held` columns of
    /// each head.
    pub fn of_own(entries: &Entries, held: &[usize]) -> Self {
        let dims = entries.positions.dims();
        let device = entries.positions.device();
        let place = iota(dims, &device);
        Self {
            entries: held.to_vec(),
            rows: place.clone(),
            norms: Tensor::ones(dims, (&device, DType::F32)),
            centers: place,
        }
    }

    /// Returns the table of clustered entries; `None` if each token has a row of its own.
    ///
    /// # Errors
    /// As [`ClusterOps::extend`].
    pub fn of(entries: &Entries, ops: &(impl ClusterOps + ?Sized)) -> Result<Option<Self>> {
        let Some(clustering) = entries.clustering.as_ref() else { return Ok(None) };
        let Clustering { clustered_tokens, entries: shared, unclustered, cluster_of_token, .. } =
            clustering;
        let Clustering { norms, centers, .. } = clustering;
        let heads = clustered_tokens.iter().zip(shared).zip(unclustered);
        let counts: Vec<[usize; 3]> =
            heads.map(|((&tokens, &shared), &own)| [tokens, shared, own]).collect();
        let ExtendOutput { rows, norms, centers } = ops.extend(ExtendInput {
            cluster_of_token: cluster_of_token.clone(),
            norms: norms.clone(),
            centers: centers.clone(),
            counts: &counts,
            columns: entries.positions.dims()[2],
            rows: entries.keys.dims()[2],
        })?;
        Ok(Some(Self { entries: clustering.all_entries(), rows, norms, centers }))
    }

    /// Returns the clustering that a store takes in, of the last `counts` columns of each head.
    /// `positions` are −1 at columns without a token, which come first.
    ///
    /// # Errors
    /// As [`ClusterOps::sort_by_cluster`].
    pub fn clustering(
        self,
        positions: &Tensor<3, Int>,
        counts: &[usize],
        ops: &(impl ClusterOps + ?Sized),
    ) -> Result<Clustering> {
        let (columns, rows) = (self.rows.dims()[2], self.centers.dims()[2]);
        let back = |counts: &[usize], width: usize| -> Vec<i64> {
            counts.iter().map(|&count| count as i64 - width as i64).collect()
        };
        let nothing = positions.clone().lower_scalar(0);
        let cluster_of_token = offset_per_head(self.rows, &back(&self.entries, rows));
        let clusters = cluster_of_token.clone().mask_fill(nothing, -1);
        let ClusterOrder { tokens_by_cluster, padding_columns, .. } =
            ops.sort_by_cluster(clusters, rows)?;
        Ok(Clustering {
            clustered_tokens: counts.to_vec(),
            unclustered: vec![0; counts.len()],
            cluster_of_token: cluster_of_token.clamp_min(0),
            norms: self.norms,
            centers: offset_per_head(self.centers, &back(counts, columns)).clamp_min(0),
            entries: self.entries,
            tokens_by_cluster,
            padding_columns,
        })
    }
}
