//! Clusters: entries that several tokens share (EMS).

use burn::tensor::{Tensor, kind::Basic};

mod evict;
mod reorder;
mod scores;
mod sort;

/// The same numbers, behind themselves along a dimension.
fn behind<K: Basic>(x: &Tensor<3, K>, dim: usize) -> Tensor<3, K> {
    let size = x.dims()[dim];
    Tensor::cat(vec![x.clone(), x.clone()], dim).narrow(dim, size, size)
}
