use burn::tensor::{DType, Tensor};

/// Divides each row by its length, in f32; a zero row stays zero.
pub fn unit(x: Tensor<4>) -> Tensor<4> {
    let x = x.cast(DType::F32);
    let norm = norm(x.clone());
    x / norm.clamp_min(f32::MIN_POSITIVE)
}

/// Returns the Euclidean length of each row, f32: `[.., channels]` becomes `[.., 1]`.
pub fn norm(x: Tensor<4>) -> Tensor<4> {
    x.cast(DType::F32).square().sum_dim(3).sqrt()
}
