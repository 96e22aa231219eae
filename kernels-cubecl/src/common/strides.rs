use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// How many vectors lie between one batch row, head and row of a tensor `[batch, heads, rows,
/// channels]` and the next; channels follow each other.
///
/// As scalars: a kernel reads the strides of a tensor from the device's memory, and one that takes
/// some microseconds waits for that before each load that they lead to.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct RowStrides {
    batch: usize,
    head: usize,
    /// From one row to the next.
    pub(crate) row: usize,
}

#[cube]
impl RowStrides {
    /// Where the row begins.
    pub(crate) fn at(&self, batch: usize, head: usize, row: usize) -> usize {
        batch * self.batch + head * self.head + row * self.row
    }
}

/// The strides of a tensor of four dimensions, whose rows begin at vectors of `width` numbers.
pub(crate) fn row_strides(x: &CubeTensor, width: usize) -> RowStridesLaunch {
    let strides = x.meta.strides();
    RowStridesLaunch::new(strides[0] / width, strides[1] / width, strides[2] / width)
}
