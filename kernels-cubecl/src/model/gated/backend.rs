use briquette_ops::Activation;

use super::kernel;
use crate::common::{backend::*, rows::cube_count, vector::vector_size};

/// The gate as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(in crate::model) trait GatedBackend: Backend {
    /// See [`super::gated`].
    #[fusion(meta = |gate, _up, _activation| gate.clone())]
    fn gated(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self>;
}

impl GatedBackend for CubeBackend {
    fn gated(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        let (client, shape) = (gate.client.clone(), gate.shape());
        let output = empty(&gate, shape.clone(), gate.dtype);
        let all = [&gate, &up, &output];
        let width = all.map(vector_size).into_iter().min().unwrap_or(1);
        let vectors = shape[1] / width;
        let element = dtype_to_storage_type(gate.dtype);
        kernel::gated::launch(
            &client,
            cube_count((shape[0] * vectors).div_ceil(kernel::UNITS)),
            CubeDim::new_1d(kernel::UNITS as u32),
            width,
            gate.into_tensor_arg(),
            up.into_tensor_arg(),
            output.clone().into_tensor_arg(),
            vectors,
            activation,
            element,
        );
        output
    }
}
