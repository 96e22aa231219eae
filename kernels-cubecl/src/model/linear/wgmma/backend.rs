#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::{
    backend::{
        Backend, TensorMetadata, backend_extension, ops::FloatTensorOps, tensor::FloatTensor,
    },
    tensor::Shape,
};
use burn_cubecl::{CubeBackend, ops::numeric::empty_device_dtype};

use super::{
    super::{
        launch::{k_major, launch as product},
        operands::Added,
    },
    choose::choose,
    kernel::LinearGroupsBlueprint,
    launch::launch,
    settings::LINEAR_SETTINGS,
};
use crate::model::gated::{Curve, launch as gate};
#[cfg(feature = "fusion")]
use crate::model::linear::operands::AddedMetadata;

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

/// The product with a gate behind it as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait GatedLinearBackend: Backend {
    /// See [`super::gated_linear`].
    #[fusion(meta = |x, weight, _added, _curve| half(x, weight))]
    fn gated_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] added: Added<Self>,
        curve: Curve,
    ) -> FloatTensor<Self>;
}

/// Shape of a side, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn half(x: &TensorSpec, weight: &TensorSpec) -> TensorSpec {
    TensorSpec::new(Shape::from([x.shape[0], weight.shape[1] / 2]), x.dtype)
}

impl GatedLinearBackend for CubeBackend {
    fn gated_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        added: Added<Self>,
        curve: Curve,
    ) -> FloatTensor<Self> {
        let ([rows, inputs], outputs) = ([x.shape()[0], x.shape()[1]], weight.shape()[1]);
        let Some(weight) = k_major(&weight) else {
            // Weights as Burn has them.
            let both = product(x, weight, added);
            let half = |first: usize| {
                let columns = (first..first + outputs / 2).into();
                Self::float_slice(both.clone(), &[(0..rows).into(), columns])
            };
            return gate(half(0), half(outputs / 2), curve);
        };
        let shape = Shape::from([rows, outputs / 2]);
        let output = empty_device_dtype(x.client.clone(), x.device.clone(), shape, x.dtype);
        let blueprint =
            LinearGroupsBlueprint { gate: Some(curve), ..choose([rows, inputs, outputs]) };
        launch(x, weight, added.into_bias(), &output, blueprint);
        output
    }
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
