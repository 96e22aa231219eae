use super::kernel::{self, UNITS};
use crate::common::backend::*;

/// The kernels as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait GlobalLocalBackend: Backend {
    /// See [`super::global_local`].
    #[fusion(dtype = DType::F32, shape = Shape::from([sums[0], *kv_heads, sums[2]]))]
    fn global_local(
        sums: FloatTensor<Self>,
        past: FloatTensor<Self>,
        current: FloatTensor<Self>,
        kv_heads: usize,
        window: usize,
        reach: usize,
        most: bool,
    ) -> FloatTensor<Self>;
}

impl GlobalLocalBackend for CubeBackend {
    fn global_local(
        sums: FloatTensor<Self>,
        past: FloatTensor<Self>,
        current: FloatTensor<Self>,
        kv_heads: usize,
        window: usize,
        reach: usize,
        most: bool,
    ) -> FloatTensor<Self> {
        let (client, shape) = (sums.client.clone(), sums.shape());
        let (batch, columns) = (shape[0], shape[2]);
        let group = shape[1] / kv_heads;
        let outside = columns.saturating_sub(window);
        let levels = empty(&sums, [batch, kv_heads], DType::F32);
        let scores = empty(&sums, [batch, kv_heads, columns], DType::F32);
        let lists = (batch * kv_heads) as u32;
        let statistics = [sums, past, current];
        let [sums, past, current] = statistics.clone().map(CubeTensor::into_tensor_arg);
        kernel::level::launch(
            &client,
            CubeCount::Static(lists, 1, 1),
            CubeDim::new_1d(UNITS as u32),
            sums,
            past,
            current,
            levels.clone().into_tensor_arg(),
            group,
        );
        let [sums, past, current] = statistics.map(CubeTensor::into_tensor_arg);
        kernel::global_local::launch(
            &client,
            CubeCount::Static(columns.div_ceil(UNITS) as u32, lists, 1),
            CubeDim::new_1d(UNITS as u32),
            sums,
            past,
            current,
            levels.into_tensor_arg(),
            scores.clone().into_tensor_arg(),
            outside,
            reach,
            most,
            group,
        );
        scores
    }
}
