//! Large buffers that grow.

use burn::tensor::{
    DType, Device, Tensor,
    kind::{Basic, Numeric},
};

use crate::ops::Ops;

/// Size in bytes from which a buffer has device memory of its own. In a page its memory would be
/// freed only with the whole page, at a clean-up, so that a cache that grows layer by layer would
/// take twice its size.
const APART: usize = 16 << 20;

/// Creates a buffer of zeros that is written in place.
pub(super) fn zeros<const D: usize, K: Basic + Numeric>(
    shape: [usize; D],
    dtype: DType,
    device: &Device,
    ops: &dyn Ops,
) -> Tensor<D, K> {
    let options = (device, dtype);
    let bytes = shape.into_iter().fold(dtype.size(), usize::saturating_mul);
    if bytes < APART {
        return Tensor::zeros(shape, options);
    }
    // What fills it is no tensor of its own.
    let mut made = None;
    ops.allocate_apart(device, &mut || made = Some(Tensor::empty(shape, options)));
    let made = made.unwrap_or_else(|| Tensor::empty(shape, options));
    let nothing = Tensor::<D, K>::zeros([1; D], options).expand(shape);
    made.slice_assign(shape.map(|size| 0..size), nothing)
}
