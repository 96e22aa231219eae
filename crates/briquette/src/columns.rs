//! Columns of entries: dimension 2 of all their tensors.

use burn::tensor::Tensor;

/// Returns `x` with `columns` columns of zeros before it.
pub(crate) fn behind_zeros<const D: usize>(x: Tensor<D>, columns: usize) -> Tensor<D> {
    let mut dims = x.dims();
    dims[2] = columns;
    let zeros = Tensor::zeros(dims, (&x.device(), x.dtype()));
    Tensor::cat(vec![zeros, x], 2)
}
