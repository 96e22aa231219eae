use cubecl::prelude::*;

/// Where the numbers of a list begin in a tensor, and how far it is from one to the next.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct StridedSlice {
    pub(crate) start: usize,
    pub(crate) stride: usize,
}

#[cube]
impl StridedSlice {
    /// Where the number at `place` lies.
    pub(crate) fn at(&self, place: usize) -> usize {
        self.start + place * self.stride
    }
}

/// Where the number of a head at `place` lies.
#[cube]
pub(crate) fn at<T: CubePrimitive>(
    x: &Tensor<T>,
    batch: usize,
    head: usize,
    place: usize,
) -> usize {
    batch * x.stride(0) + head * x.stride(1) + place * x.stride(2)
}

/// Writes the number of a head at `place`.
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
