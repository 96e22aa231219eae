use burn::backend::{Backend, backend_extension, tensor::IntTensor};
#[cfg(feature = "fusion")]
use burn::{backend::fusion::custom::TensorSpec, tensor::Shape};
use burn_cubecl::CubeBackend;

use super::launch::launch;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait GroupBackend: Backend {
    /// See [`super::group`]: order, members, and how many are of no class.
    #[fusion(meta = outputs)]
    fn group(
        classes: IntTensor<Self>,
        number: usize,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>);
}

/// What [`GroupBackend::group`] will return, for a fusion that has not run it yet.
#[cfg(feature = "fusion")]
fn outputs(classes: &TensorSpec, _number: &usize) -> (TensorSpec, TensorSpec, TensorSpec) {
    let none = Shape::from([classes.shape[0], classes.shape[1]]);
    (classes.clone(), classes.clone(), TensorSpec::new(none, classes.dtype))
}

impl GroupBackend for CubeBackend {
    fn group(
        classes: IntTensor<Self>,
        number: usize,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        launch(classes, number)
    }
}
