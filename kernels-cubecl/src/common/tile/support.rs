//! Whether tensor cores can take a tensor.

use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{kernel::into_contiguous_aligned, tensor::CubeTensor};
use cubecl::{
    ir::{ElemType, FloatKind},
    prelude::Client,
};

use super::mma::CHUNK;

/// The widest rows of which a plane keeps 16 in registers beside its sums.
const MAX_HEAD_DIM: usize = 128;

/// Whether the device multiplies tiles of this type as [`super::mma`] does: products of 16-bit
/// numbers with sums in f32, and fragments read from shared memory by one instruction.
pub(crate) fn multiplies(client: &Client, dtype: DType, head_dim: usize) -> bool {
    if !matches!(dtype, DType::F16 | DType::BF16) {
        return false;
    }
    let properties = client.properties();
    let plane = &properties.hardware;
    let matmul = &properties.features.matmul;
    let element = dtype_to_storage_type(dtype);
    let sums = ElemType::Float(FloatKind::F32);
    head_dim.is_multiple_of(16)
        && head_dim <= MAX_HEAD_DIM
        && (plane.plane_size_min, plane.plane_size_max) == (32, 32)
        && matmul.ldmatrix.contains(&element)
        && matmul.mma.iter().any(|mma| {
            (mma.a_type, mma.b_type, mma.cd_type) == (element, element, sums)
                && (mma.m, mma.n, mma.k) == (16, 8, 16)
        })
}

/// Whether rows can be read in chunks of 16 bytes.
pub(crate) fn is_chunked(tensor: &CubeTensor) -> bool {
    let strides = tensor.meta.strides();
    let shape = tensor.shape();
    let last = strides.len() - 1;
    strides[last] == 1 && (0..last).all(|dim| strides[dim].is_multiple_of(CHUNK) || shape[dim] == 1)
}

/// The tensor with rows that can be read in chunks of 16 bytes; itself if it is so.
pub(crate) fn chunked(tensor: CubeTensor) -> CubeTensor {
    if is_chunked(&tensor) { tensor } else { into_contiguous_aligned(tensor) }
}
