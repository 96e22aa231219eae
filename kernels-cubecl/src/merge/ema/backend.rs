use burn::backend::{Backend, backend_extension, tensor::FloatTensor};
#[cfg(feature = "fusion")]
use burn::{
    backend::fusion::custom::TensorSpec,
    tensor::{DType, Shape},
};
use burn_cubecl::CubeBackend;

#[cfg(feature = "fusion")]
use super::operands::{BeforeMetadata, HeldMetadata};
use super::{
    launch::launch,
    operands::{Before, Held},
};

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait EmaBackend: Backend {
    /// See [`super::ema_weights`]: weights and thresholds.
    #[fusion(meta = outputs)]
    fn ema_weights(
        similarity: FloatTensor<Self>,
        #[extension_type] before: Before<Self>,
        #[extension_type] held: Held<Self>,
        beta: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes and types of the outputs of [`EmaBackend::ema_weights`], for fusion.
#[cfg(feature = "fusion")]
fn outputs(
    similarity: &TensorSpec,
    _before: &BeforeMetadata,
    _held: &HeldMetadata,
    _beta: &f32,
) -> (TensorSpec, TensorSpec) {
    let threshold = TensorSpec::new(Shape::from([similarity.shape[0], 1]), DType::F32);
    (similarity.clone(), threshold)
}

impl EmaBackend for CubeBackend {
    fn ema_weights(
        similarity: FloatTensor<Self>,
        before: Before<Self>,
        held: Held<Self>,
        beta: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        launch(similarity, before, held, beta)
    }
}
