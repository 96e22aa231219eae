use burn::backend::{Backend, backend_extension, tensor::FloatTensor};
#[cfg(feature = "fusion")]
use burn::{backend::fusion::custom::TensorSpec, tensor::Shape};
use burn_cubecl::CubeBackend;

#[cfg(feature = "fusion")]
use super::operands::AddedMetadata;
use super::{launch::launch, operands::Added};

/// The product as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait LinearBackend: Backend {
    /// See [`super::linear`].
    #[fusion(meta = output)]
    fn linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] added: Added<Self>,
    ) -> FloatTensor<Self>;
}

/// Shape of the product, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn output(x: &TensorSpec, weight: &TensorSpec, _added: &AddedMetadata) -> TensorSpec {
    TensorSpec::new(Shape::from([x.shape[0], weight.shape[1]]), x.dtype)
}

impl LinearBackend for CubeBackend {
    fn linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        added: Added<Self>,
    ) -> FloatTensor<Self> {
        launch(x, weight, added)
    }
}
