use briquette_kernels as kernels;
use burn::tensor::Tensor;

use super::super::{EmaInput, GlobalLocalInput, WeightsInput, global_local::pooling};

pub(super) fn row_weights(input: WeightsInput) -> kernels::Result<Tensor<3>> {
    let WeightsInput { rows, positions, scores, height, bounds: (least, most) } = input;
    kernels::row_weights(kernels::RowWeights { rows, positions, scores, height, least, most })
}

pub(super) fn global_local(input: GlobalLocalInput) -> kernels::Result<Tensor<3>> {
    let GlobalLocalInput { sums, past, current, kv_heads, window, pool } = input;
    let (pool, most) = pooling(pool);
    kernels::global_local(kernels::GlobalLocal {
        sums,
        past,
        current,
        kv_heads,
        window,
        pool,
        most,
    })
}

pub(super) fn ema_weights(input: EmaInput<'_>) -> kernels::Result<(Tensor<3>, Tensor<2>)> {
    let EmaInput { similarity, counts, before, beta } = input;
    kernels::ema_weights(kernels::EmaWeights { similarity, counts, before, beta })
}
