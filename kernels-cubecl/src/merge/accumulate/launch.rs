use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::{kernel, plan::Plan};
use crate::common::vector::vector_size;

/// Units that add up parts, and numbers of the output of one cube.
pub(super) const MERGERS: usize = 256;

pub(super) fn launch(
    x: CubeTensor,
    weights: CubeTensor,
    slot: CubeTensor,
    span: usize,
    slots: usize,
) -> CubeTensor {
    let shape = x.shape();
    let (batch, heads, rows, channels) = (shape[0], shape[1], shape[2], shape[3]);
    let lists = batch * heads;
    let Plan { chunks, buckets, of_bin, bins, chunks_of_part, parts } =
        Plan::new(rows, channels, span, slots);
    let client = x.client.clone();
    let empty = |shape, dtype| empty_device_dtype(client.clone(), x.device.clone(), shape, dtype);
    let keys = empty(Shape::from([lists, chunks, kernel::CHUNK]), DType::U32);
    let starts = empty(Shape::from([lists, chunks, bins + 1]), DType::U32);
    kernel::sort::launch(
        &client,
        CubeCount::Static(chunks as u32, lists as u32, 1),
        CubeDim::new_1d(kernel::SORTERS as u32),
        weights.clone().into_tensor_arg(),
        slot.clone().into_tensor_arg(),
        keys.clone().into_tensor_arg(),
        starts.clone().into_tensor_arg(),
        heads,
        span,
        buckets,
        of_bin,
        bins,
        dtype_to_storage_type(slot.dtype),
    );
    let sums = empty(Shape::from([parts, lists, buckets, channels]), DType::F32);
    let (vector, dtype) = (vector_size(&x).min(vector_size(&sums)), x.dtype);
    let output = empty(Shape::from([batch, heads, slots, channels]), DType::F32);
    kernel::add::launch(
        &client,
        CubeCount::Static(bins as u32, parts as u32, lists as u32),
        CubeDim::new_1d(kernel::ADDERS as u32),
        vector,
        x.into_tensor_arg(),
        weights.into_tensor_arg(),
        keys.into_tensor_arg(),
        starts.into_tensor_arg(),
        sums.clone().into_tensor_arg(),
        heads,
        chunks_of_part,
        buckets,
        of_bin,
        channels,
        dtype_to_storage_type(dtype),
    );
    kernel::merge::launch(
        &client,
        CubeCount::Static((slots * channels).div_ceil(MERGERS) as u32, lists as u32, 1),
        CubeDim::new_1d(MERGERS as u32),
        sums.into_tensor_arg(),
        output.clone().into_tensor_arg(),
        span,
        MERGERS,
    );
    output
}
