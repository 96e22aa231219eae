//! Tensors as buffers of CubeCL, for those who look at where numbers lie. Where operations are put
//! off to be fused, a tensor need not have a buffer yet.

use burn::tensor::{Int, Tensor};
use burn_cubecl::tensor::CubeTensor;

/// Whether operations of this build are put off to be fused.
pub const FUSES: bool = cfg!(feature = "fusion");

/// The buffer of a tensor; `None` if its device is none of CubeCL's, or this build [fuses](FUSES).
pub fn of_floats<const D: usize>(tensor: &Tensor<D>) -> Option<CubeTensor> {
    #[cfg(not(feature = "fusion"))]
    return tensor.clone().try_into_primitive::<burn_cubecl::CubeBackend>().ok();
    #[cfg(feature = "fusion")]
    {
        let _ = tensor;
        None
    }
}

/// See [`of_floats`].
pub fn of_ints<const D: usize>(tensor: &Tensor<D, Int>) -> Option<CubeTensor> {
    #[cfg(not(feature = "fusion"))]
    return tensor.clone().try_into_primitive::<burn_cubecl::CubeBackend>().ok();
    #[cfg(feature = "fusion")]
    {
        let _ = tensor;
        None
    }
}

/// Makes a buffer that of a tensor, unless this build [fuses](FUSES): then there was none to have.
pub fn put_floats<const D: usize>(tensor: &mut Tensor<D>, buffer: CubeTensor) {
    #[cfg(not(feature = "fusion"))]
    (*tensor = Tensor::from_primitive::<burn_cubecl::CubeBackend>(buffer));
    #[cfg(feature = "fusion")]
    let _ = (tensor, buffer);
}

/// See [`put_floats`].
pub fn put_ints<const D: usize>(tensor: &mut Tensor<D, Int>, buffer: CubeTensor) {
    #[cfg(not(feature = "fusion"))]
    (*tensor = Tensor::from_primitive::<burn_cubecl::CubeBackend>(buffer));
    #[cfg(feature = "fusion")]
    let _ = (tensor, buffer);
}
