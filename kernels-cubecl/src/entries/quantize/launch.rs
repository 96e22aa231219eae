use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::CubeDim;

use super::kernel::{self, UNITS};
use crate::common::{rounding::Precision, rows::cube_count};

fn empty(like: &CubeTensor, shape: [usize; 2], dtype: DType) -> CubeTensor {
    empty_device_dtype(like.client.clone(), like.device.clone(), Shape::from(shape), dtype)
}

/// Words, scales and minima.
pub(super) fn launch(
    x: CubeTensor,
    group: usize,
    bits: u32,
    dtype: DType,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let shape = x.shape();
    let (pages, rows, numbers) = (shape[0], shape[1], shape[2]);
    let groups = numbers / group;
    let width = numbers.div_ceil(32 / bits as usize);
    let words = empty(&x, [pages, rows * width], DType::I32);
    let [scale, min] = [(); 2].map(|()| empty(&x, [pages, rows * groups], dtype));
    let types = [x.dtype, dtype].map(dtype_to_storage_type);
    kernel::quantize::launch(
        &x.client.clone(),
        cube_count((pages * rows * groups).div_ceil(UNITS)),
        CubeDim::new_1d(UNITS as u32),
        x.into_tensor_arg(),
        words.clone().into_tensor_arg(),
        scale.clone().into_tensor_arg(),
        min.clone().into_tensor_arg(),
        groups,
        group,
        width,
        bits,
        Precision::of(dtype),
        types,
    );
    (words, scale, min)
}

/// Words and scales.
pub(super) fn launch_fp8(x: CubeTensor, dtype: DType) -> (CubeTensor, CubeTensor) {
    let shape = x.shape();
    let (pages, rows, channels) = (shape[0], shape[1], shape[2]);
    let words = empty(&x, [pages, rows * channels.div_ceil(4)], DType::I32);
    let scale = empty(&x, [pages, rows], dtype);
    let types = [x.dtype, dtype].map(dtype_to_storage_type);
    kernel::quantize_fp8::launch(
        &x.client.clone(),
        cube_count((pages * rows).div_ceil(UNITS)),
        CubeDim::new_1d(UNITS as u32),
        x.into_tensor_arg(),
        words.clone().into_tensor_arg(),
        scale.clone().into_tensor_arg(),
        Precision::of(dtype),
        types,
    );
    (words, scale)
}
