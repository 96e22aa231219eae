use burn::tensor::{Int, Tensor, TensorData};

use crate::error::{OpError, Result};

/// Columns sorted by cluster.
#[derive(Clone, Debug)]
pub struct ClusterOrder {
    /// Columns of each head: those in no cluster, then those in one, both ascending.
    /// `[batch, kv_heads, columns]`
    pub order: Tensor<3, Int>,
    /// Indices into `order`: those in no cluster, then cluster by cluster, ascending in each.
    /// `[batch, kv_heads, columns]`
    pub tokens_by_cluster: Tensor<3, Int>,
    /// Number of columns in no cluster, `[batch, kv_heads]`.
    pub padding_columns: Tensor<2, Int>,
}

/// Sorts on the host, with one read of the clusters. Burn's own sort reads them back as well, and
/// promises no order of equals.
pub(super) fn sort_by_cluster(clusters: Tensor<3, Int>) -> Result<ClusterOrder> {
    let device = clusters.device();
    let [batch, heads, columns] = clusters.dims();
    let clusters = clusters.try_into_vec_as::<i64>();
    let clusters = clusters.map_err(|error| OpError::failed("sort_by_cluster", error))?;
    let (mut order, mut tokens_by_cluster, mut padding_columns) =
        (Vec::new(), Vec::new(), Vec::new());
    for clusters in clusters.chunks(columns.max(1)) {
        let (without, with): (Vec<usize>, Vec<usize>) =
            (0..columns).partition(|&column| clusters[column] < 0);
        padding_columns.push(without.len() as i64);
        let of_row = [without, with].concat();
        let mut places: Vec<usize> = (0..columns).collect();
        places.sort_by_key(|&place| clusters[of_row[place]].max(-1));
        order.extend(of_row.into_iter().map(|column| column as i64));
        tokens_by_cluster.extend(places.into_iter().map(|place| place as i64));
    }
    let list =
        |numbers| Tensor::from_data(TensorData::new(numbers, [batch, heads, columns]), &device);
    Ok(ClusterOrder {
        order: list(order),
        tokens_by_cluster: list(tokens_by_cluster),
        padding_columns: Tensor::from_data(
            TensorData::new(padding_columns, [batch, heads]),
            &device,
        ),
    })
}
