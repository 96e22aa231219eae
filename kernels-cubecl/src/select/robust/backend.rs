use super::kernel;
use crate::common::{backend::*, eviction::weakest::UNITS, rows::cube_count};

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait RobustBackend: Backend {
    /// See [`super::robust_scores`]. `numbers` are two a head.
    #[fusion(dtype = DType::F32, shape = positions)]
    fn robust_scores(
        sums: FloatTensor<Self>,
        squares: FloatTensor<Self>,
        numbers: IntTensor<Self>,
        positions: IntTensor<Self>,
    ) -> FloatTensor<Self>;
}

impl RobustBackend for CubeBackend {
    fn robust_scores(
        sums: FloatTensor<Self>,
        squares: FloatTensor<Self>,
        numbers: IntTensor<Self>,
        positions: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let (client, shape) = (sums.client.clone(), positions.shape());
        let [scores, deviations] = [(); 2].map(|()| empty(&sums, shape.clone(), DType::F32));
        let group = sums.shape()[1] / shape[1];
        let integers = dtype_to_storage_type(positions.dtype);
        kernel::robust_scores::launch(
            &client,
            cube_count(shape[0] * shape[1]),
            CubeDim::new_1d(UNITS as u32),
            sums.into_tensor_arg(),
            squares.into_tensor_arg(),
            numbers.into_tensor_arg(),
            positions.into_tensor_arg(),
            deviations.into_tensor_arg(),
            scores.clone().into_tensor_arg(),
            group,
            integers,
        );
        scores
    }
}
