use cubecl::prelude::*;

/// Numbers of a tensor at equal distances: where they begin, and from one to the next.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct StridedSlice {
    pub(crate) start: usize,
    pub(crate) stride: usize,
}

#[cube]
impl StridedSlice {
    /// Index of the number at `place` in the tensor.
    pub(crate) fn at(&self, place: usize) -> usize {
        self.start + place * self.stride
    }
}

/// The channels of a row of a head, of a tensor `[batch, heads, rows, channels]`.
#[cube]
pub(crate) fn row_of<T: CubePrimitive>(
    x: &Tensor<T>,
    batch: usize,
    head: usize,
    row: usize,
) -> StridedSlice {
    StridedSlice { start: at::<T>(x, batch, head, row), stride: x.stride(3) }
}

/// Index in a tensor of the number at `place` of a head.
#[cube]
pub(crate) fn at<T: CubePrimitive>(
    x: &Tensor<T>,
    batch: usize,
    head: usize,
    place: usize,
) -> usize {
    batch * x.stride(0) + head * x.stride(1) + place * x.stride(2)
}

/// Writes the number at `place` of a head.
#[cube]
pub(crate) fn write<T: CubePrimitive>(
    x: &mut Tensor<T>,
    batch: usize,
    head: usize,
    place: usize,
    number: T,
) {
    let to = at::<T>(&*x, batch, head, place);
    x[to] = number;
}
