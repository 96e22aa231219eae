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
    let to = batch * x.stride(0) + head * x.stride(1) + place * x.stride(2);
    x[to] = number;
}
