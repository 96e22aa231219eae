use burn::backend::{
    Backend, ExtensionType, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{
    backend::fusion::custom::TensorSpec,
    tensor::{DType, Shape},
};
use burn_cubecl::CubeBackend;

use super::launch;

/// How many columns of each head there are.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Held<B: Backend> {
    /// As many of all.
    Alike {
        count: usize,
    },
    Differ {
        counts: IntTensor<B>,
    },
}

/// The threshold there was.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Before<B: Backend> {
    Nothing,
    Threshold { of_rows: FloatTensor<B> },
}

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

/// What [`EmaBackend::ema_weights`] will return, for a fusion that has not run it yet.
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
