#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
#[cfg(feature = "fusion")]
use burn::tensor::Shape;
use burn::{
    backend::{
        Backend, backend_extension,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::DType,
};
use burn_cubecl::CubeBackend;

use super::launch::{launch, launch_fp8};

/// The kernels as operations of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait QuantizeBackend: Backend {
    /// See [`super::quantize`]: words, scales and minima.
    #[fusion(meta = groups)]
    fn quantize(
        x: FloatTensor<Self>,
        group: usize,
        bits: u8,
        dtype: DType,
    ) -> (IntTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// See [`super::quantize_fp8`]: words and scales.
    #[fusion(meta = vectors)]
    fn quantize_fp8(x: FloatTensor<Self>, dtype: DType) -> (IntTensor<Self>, FloatTensor<Self>);
}

/// Shapes and types of the outputs of [`QuantizeBackend::quantize`], for fusion.
#[cfg(feature = "fusion")]
fn groups(
    x: &TensorSpec,
    group: &usize,
    bits: &u8,
    dtype: &DType,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    let [pages, rows, numbers] = [0, 1, 2].map(|dim| x.shape[dim]);
    let words = rows * numbers.div_ceil(32 / usize::from(*bits));
    let measure = || TensorSpec::new(Shape::from([pages, rows * numbers / group]), *dtype);
    (TensorSpec::new(Shape::from([pages, words]), DType::I32), measure(), measure())
}

/// Shapes and types of the outputs of [`QuantizeBackend::quantize_fp8`], for fusion.
#[cfg(feature = "fusion")]
fn vectors(x: &TensorSpec, dtype: &DType) -> (TensorSpec, TensorSpec) {
    let [pages, rows, channels] = [0, 1, 2].map(|dim| x.shape[dim]);
    let words = TensorSpec::new(Shape::from([pages, rows * channels.div_ceil(4)]), DType::I32);
    (words, TensorSpec::new(Shape::from([pages, rows]), *dtype))
}

impl QuantizeBackend for CubeBackend {
    fn quantize(
        x: FloatTensor<Self>,
        group: usize,
        bits: u8,
        dtype: DType,
    ) -> (IntTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        launch(x, group, u32::from(bits), dtype)
    }

    fn quantize_fp8(x: FloatTensor<Self>, dtype: DType) -> (IntTensor<Self>, FloatTensor<Self>) {
        launch_fp8(x, dtype)
    }
}
