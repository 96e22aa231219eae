#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::{Backend, backend_extension, tensor::FloatTensor};
use burn_cubecl::CubeBackend;

#[cfg(feature = "fusion")]
use super::operands::ResidualMetadata;
use super::{launch::launch, operands::Residual};

/// Normalisation as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait RmsNormBackend: Backend {
    /// See [`super::rms_norm`]: the sum and the normalised rows.
    #[fusion(meta = outputs)]
    fn rms_norm(
        x: FloatTensor<Self>,
        #[extension_type] residual: Residual<Self>,
        weight: FloatTensor<Self>,
        epsilon: f32,
        weight_less_one: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes of the sum and the normalised rows, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn outputs(
    x: &TensorSpec,
    _residual: &ResidualMetadata,
    _weight: &TensorSpec,
    _epsilon: &f32,
    _weight_less_one: &bool,
) -> (TensorSpec, TensorSpec) {
    (x.clone(), x.clone())
}

impl RmsNormBackend for CubeBackend {
    fn rms_norm(
        x: FloatTensor<Self>,
        residual: Residual<Self>,
        weight: FloatTensor<Self>,
        epsilon: f32,
        weight_less_one: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        launch(x, residual, weight, epsilon, weight_less_one)
    }
}
