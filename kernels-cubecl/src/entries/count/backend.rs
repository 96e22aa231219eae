use super::kernel;
use crate::common::{backend::*, rows::cube_count};

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait CountBackend: Backend {
    /// See [`super::count`]. `added` has a bit per kind of statistics that the mean is
    /// added to, the first the lowest, `squared` one per kind that the mean square is added to.
    #[fusion(meta = |statistics, _weights, _added, _squared| statistics.clone())]
    fn count(
        statistics: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        added: u32,
        squared: u32,
    ) -> FloatTensor<Self>;
}

impl CountBackend for CubeBackend {
    fn count(
        statistics: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        added: u32,
        squared: u32,
    ) -> FloatTensor<Self> {
        let client = statistics.client.clone();
        let (shape, batch) = (statistics.shape(), weights.shape()[0]);
        let output = empty(&statistics, shape.clone(), DType::F32);
        kernel::count::launch(
            &client,
            cube_count((batch * shape[1] * shape[2]).div_ceil(kernel::UNITS)),
            CubeDim::new_1d(kernel::UNITS as u32),
            statistics.into_tensor_arg(),
            weights.into_tensor_arg(),
            output.clone().into_tensor_arg(),
            shape[0] / batch,
            added,
            squared,
        );
        output
    }
}
