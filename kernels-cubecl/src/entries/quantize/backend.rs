use super::kernel::{self, UNITS};
use crate::common::{backend::*, rounding::Precision, rows::cube_count};

/// The kernels as operations of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait QuantizeBackend: Backend {
    /// See [`super::quantize`]: words, scales and minima.
    #[fusion(meta = |x, group, bits, dtype| {
        let [words, measures] = shapes_of_groups(&x.shape, *group, *bits);
        let measures = TensorSpec::new(measures, *dtype);
        (TensorSpec::new(words, DType::I32), measures.clone(), measures)
    })]
    fn quantize(
        x: FloatTensor<Self>,
        group: usize,
        bits: u8,
        dtype: DType,
    ) -> (IntTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// See [`super::quantize_fp8`]: words and scales.
    #[fusion(meta = |x, dtype| {
        let [words, scale] = shapes_of_vectors(&x.shape);
        (TensorSpec::new(words, DType::I32), TensorSpec::new(scale, *dtype))
    })]
    fn quantize_fp8(x: FloatTensor<Self>, dtype: DType) -> (IntTensor<Self>, FloatTensor<Self>);
}

/// Shapes of words, and of scales or minima.
fn shapes_of_groups(x: &Shape, group: usize, bits: u8) -> [Shape; 2] {
    let words = x[1] * x[2].div_ceil(32 / usize::from(bits));
    [Shape::from([x[0], words]), Shape::from([x[0], x[1] * (x[2] / group)])]
}

/// Shapes of words and scales.
fn shapes_of_vectors(x: &Shape) -> [Shape; 2] {
    [Shape::from([x[0], x[1] * x[2].div_ceil(4)]), Shape::from([x[0], x[1]])]
}

impl QuantizeBackend for CubeBackend {
    fn quantize(
        x: FloatTensor<Self>,
        group: usize,
        bits: u8,
        dtype: DType,
    ) -> (IntTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let shape = x.shape();
        let groups = shape[2] / group;
        let [words, measures] = shapes_of_groups(&shape, group, bits);
        let words = empty(&x, words, DType::I32);
        let [scale, min] = [(); 2].map(|()| empty(&x, measures.clone(), dtype));
        let types = [x.dtype, dtype].map(dtype_to_storage_type);
        kernel::quantize::launch(
            &x.client.clone(),
            cube_count((shape[0] * shape[1] * groups).div_ceil(UNITS)),
            CubeDim::new_1d(UNITS as u32),
            x.into_tensor_arg(),
            words.clone().into_tensor_arg(),
            scale.clone().into_tensor_arg(),
            min.clone().into_tensor_arg(),
            groups,
            group,
            shape[2].div_ceil(32 / usize::from(bits)),
            u32::from(bits),
            Precision::of(dtype),
            types,
        );
        (words, scale, min)
    }

    fn quantize_fp8(x: FloatTensor<Self>, dtype: DType) -> (IntTensor<Self>, FloatTensor<Self>) {
        let shape = x.shape();
        let [words, scale] = shapes_of_vectors(&shape);
        let (words, scale) = (empty(&x, words, DType::I32), empty(&x, scale, dtype));
        let types = [x.dtype, dtype].map(dtype_to_storage_type);
        kernel::quantize_fp8::launch(
            &x.client.clone(),
            cube_count((shape[0] * shape[1]).div_ceil(UNITS)),
            CubeDim::new_1d(UNITS as u32),
            x.into_tensor_arg(),
            words.clone().into_tensor_arg(),
            scale.clone().into_tensor_arg(),
            Precision::of(dtype),
            types,
        );
        (words, scale)
    }
}
