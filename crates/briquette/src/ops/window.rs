use burn::tensor::{DType, Tensor};

use super::{WindowInput, attention::block_weights, product::Precision};

/// A window is one block of queries.
pub(super) fn window_weights(input: WindowInput) -> Tensor<4> {
    let WindowInput { queries, keys, visibility, scale } = input;
    let rows = queries.dims()[2];
    let entries = keys.dims()[2];
    let precision = Precision::of(&[queries.dtype(), keys.dtype()], &queries.device());
    block_weights(
        queries.cast(DType::F32) * scale,
        keys.cast(DType::F32).swap_dims(2, 3),
        &visibility,
        0..rows,
        entries.saturating_sub(rows),
        precision,
    )
}
