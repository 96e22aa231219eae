use super::kernel;
use crate::common::backend::*;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait RowWeightsBackend: Backend {
    /// See [`super::row_weights`].
    #[fusion(dtype = DType::F32, shape = Shape::from([rows[0], rows[1], *height]))]
    fn row_weights(
        rows: IntTensor<Self>,
        positions: IntTensor<Self>,
        scores: FloatTensor<Self>,
        height: usize,
        least: f32,
        most: f32,
    ) -> FloatTensor<Self>;
}

impl RowWeightsBackend for CubeBackend {
    fn row_weights(
        rows: IntTensor<Self>,
        positions: IntTensor<Self>,
        scores: FloatTensor<Self>,
        height: usize,
        least: f32,
        most: f32,
    ) -> FloatTensor<Self> {
        let (client, shape, dtype) = (scores.client.clone(), scores.shape(), rows.dtype);
        let weights = empty(&scores, [shape[0], shape[1], height], DType::F32);
        let cubes = height.div_ceil(kernel::UNITS);
        kernel::row_weights::launch(
            &client,
            CubeCount::Static(cubes as u32, (shape[0] * shape[1]) as u32, 1),
            CubeDim::new_1d(kernel::UNITS as u32),
            rows.into_tensor_arg(),
            positions.into_tensor_arg(),
            scores.into_tensor_arg(),
            weights.clone().into_tensor_arg(),
            least,
            most,
            dtype_to_storage_type(dtype),
        );
        weights
    }
}
