//! Columns of entries: dimension 2 of all that is known of them.

use burn::tensor::Tensor;

/// The columns of `x` behind so many of zeros.
pub(crate) fn behind_zeros<const D: usize>(x: Tensor<D>, columns: usize) -> Tensor<D> {
    let mut dims = x.dims();
    dims[2] = columns;
    let zeros = Tensor::zeros(dims, (&x.device(), x.dtype()));
    Tensor::cat(vec![zeros, x], 2)
}
