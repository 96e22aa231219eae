//! Buffers that a kernel writes into.

use burn_cubecl::tensor::CubeTensor;

/// The tensor in a buffer that nobody else reads and in which no number stands for several: as it
/// is, or copied.
pub(crate) fn writable(tensor: CubeTensor) -> CubeTensor {
    let dims = tensor.meta.shape().iter().zip(tensor.meta.strides().iter());
    let is_expanded = dims.into_iter().any(|(&size, &stride)| size > 1 && stride == 0);
    if tensor.can_mut() && !is_expanded { tensor } else { tensor.copy() }
}
