use briquette_ops::Activation;
use burn::backend::ops::FloatTensorOps;

use super::{
    super::backend::{LinearBackend, k_major},
    choose::choose,
    kernel::LinearGroupsBlueprint,
    launch::launch,
    settings::LINEAR_SETTINGS,
};
use crate::{
    common::{backend::*, optional::Optional},
    model::gated::GatedBackend,
};

/// Products as operations of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait LinearGroupsBackend: Backend {
    /// See [`super::linear_by`].
    #[fusion(dtype = x, shape = Shape::from([x[0], weight[1]]))]
    fn linear_by(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        setting: usize,
    ) -> FloatTensor<Self>;

    /// See [`super::gated_linear`].
    #[fusion(dtype = x, shape = Shape::from([x[0], weight[1] / 2]))]
    fn gated_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Optional<Self>,
        activation: Activation,
    ) -> FloatTensor<Self>;
}

impl LinearGroupsBackend for CubeBackend {
    fn linear_by(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        setting: usize,
    ) -> FloatTensor<Self> {
        let output = empty(&x, [x.shape()[0], weight.shape()[1]], x.dtype);
        let blueprint = LinearGroupsBlueprint::new(LINEAR_SETTINGS[setting]);
        let weight = Self::float_transpose(weight);
        launch(x, weight, None, &output, blueprint);
        output
    }

    fn gated_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Optional<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        let ([rows, inputs], outputs) = ([x.shape()[0], x.shape()[1]], weight.shape()[1]);
        let Some(weight) = k_major(&weight) else {
            // Weights as Burn has them.
            let both = Self::linear(x, weight, bias);
            let half = |first: usize| {
                let columns = (first..first + outputs / 2).into();
                Self::float_slice(both.clone(), &[(0..rows).into(), columns])
            };
            return Self::gated(half(0), half(outputs / 2), activation);
        };
        let output = empty(&x, [rows, outputs / 2], x.dtype);
        let blueprint =
            LinearGroupsBlueprint { gate: Some(activation), ..choose([rows, inputs, outputs]) };
        launch(x, weight, bias.into_option(), &output, blueprint);
        output
    }
}
