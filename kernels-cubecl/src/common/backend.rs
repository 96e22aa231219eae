//! What operations of a backend are made with.

#[cfg(feature = "fusion")]
pub(crate) use burn::backend::fusion::custom::TensorSpec;
pub(crate) use burn::{
    backend::{
        Backend, ExtensionType, TensorMetadata, backend_extension,
        cubecl::dtype_to_storage_type,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{DType, Shape},
};
use burn_cubecl::ops::numeric::empty_device_dtype;
pub(crate) use burn_cubecl::{CubeBackend, tensor::CubeTensor};
pub(crate) use cubecl::prelude::{Client, CubeCount, CubeDim};

/// A tensor that nobody has written to, on the device of another.
pub(crate) fn empty(beside: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    empty_device_dtype(beside.client.clone(), beside.device.clone(), shape.into(), dtype)
}
