use super::kernel;
use crate::common::{backend::*, eviction::weakest::UNITS, rows::cube_count};

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait RanksBackend: Backend {
    /// See [`super::ranks`].
    #[fusion(meta = |positions, _sinks| positions.clone())]
    fn ranks(positions: IntTensor<Self>, sinks: u32) -> IntTensor<Self>;
}

impl RanksBackend for CubeBackend {
    fn ranks(positions: IntTensor<Self>, sinks: u32) -> IntTensor<Self> {
        let (client, shape, dtype) = (positions.client.clone(), positions.shape(), positions.dtype);
        let ranks = empty(&positions, shape.clone(), dtype);
        kernel::ranks::launch(
            &client,
            cube_count(shape[0] * shape[1]),
            CubeDim::new_1d(UNITS as u32),
            positions.into_tensor_arg(),
            ranks.clone().into_tensor_arg(),
            sinks,
            dtype_to_storage_type(dtype),
        );
        ranks
    }
}
