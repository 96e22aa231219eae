#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::{
    backend::{
        Backend, TensorMetadata, backend_extension, ops::FloatTensorOps, tensor::FloatTensor,
    },
    tensor::Shape,
};
use burn_cubecl::{CubeBackend, ops::numeric::empty_device_dtype};

use super::{kernel::LinearGroupsBlueprint, launch::launch, settings::LINEAR_SETTINGS};

/// The product by a setting as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait LinearByBackend: Backend {
    /// See [`super::linear_by`].
    #[fusion(meta = |x, weight, _setting| output(x, weight))]
    fn linear_by(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        setting: usize,
    ) -> FloatTensor<Self>;
}

/// Shape of the product, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn output(x: &TensorSpec, weight: &TensorSpec) -> TensorSpec {
    TensorSpec::new(Shape::from([x.shape[0], weight.shape[1]]), x.dtype)
}

impl LinearByBackend for CubeBackend {
    fn linear_by(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        setting: usize,
    ) -> FloatTensor<Self> {
        let shape = Shape::from([x.shape()[0], weight.shape()[1]]);
        let output = empty_device_dtype(x.client.clone(), x.device.clone(), shape, x.dtype);
        let blueprint = LinearGroupsBlueprint::new(LINEAR_SETTINGS[setting]);
        let weight = Self::float_transpose(weight);
        launch(x, weight, None, &output, blueprint);
        output
    }
}
