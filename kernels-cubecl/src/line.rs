use cubecl::prelude::*;

/// Where the numbers of a list begin in a tensor, and how far it is from one to the next.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Line {
    pub(crate) start: usize,
    pub(crate) stride: usize,
}

#[cube]
impl Line {
    /// Where the number at `place` lies.
    pub(crate) fn at(&self, place: usize) -> usize {
        self.start + place * self.stride
    }
}
