use burn::tensor::{
    DType, Int, Tensor,
    kind::{Basic, Numeric},
};

use super::{StoreOptions, buffer::zeros};
use crate::{
    Result,
    device::{Rows, buffer_bytes},
    ops::Ops,
    prefix::Parts,
    state::{StateTensor, StateVisitor},
};

/// Keys or values of some pages, packed in words, with the measures to unpack them.
///
/// The numbers of a page are one row, since devices may pad rows: CUDA pads short ones to 16 bytes.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    /// 32-bit integers, `[pages, words]`.
    pub(super) words: Tensor<2, Int>,
    /// Each `[pages, numbers]`, in the cache's type.
    pub(super) measures: Vec<Tensor<2>>,
}

/// Numbers of words and measures per page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Widths {
    pub(super) words: usize,
    pub(super) measures: Vec<usize>,
}

impl Widths {
    pub(super) fn bytes(&self, rows: Rows, dtype: DType) -> usize {
        let measures = self.measures.iter().map(|&numbers| rows.bytes(numbers, dtype.size()));
        rows.bytes(self.words, size_of::<u32>()) + measures.sum::<usize>()
    }
}

impl Packed {
    pub(super) fn select(&self, pages: &Tensor<1, Int>) -> Self {
        self.map(|words| words.select(0, pages.clone()), |x| x.select(0, pages.clone()))
    }

    /// The first `count` pages, with room for `capacity` in all.
    pub(super) fn with_room(&self, count: usize, capacity: usize, ops: &dyn Ops) -> Self {
        self.map(
            |words| with_room(&words, count, capacity, ops),
            |x| with_room(&x, count, capacity, ops),
        )
    }

    pub(super) fn first(&self, count: usize) -> Self {
        self.map(|words| first_rows(&words, count), |x| first_rows(&x, count))
    }

    /// Overwrites the pages from `start` on.
    pub(super) fn write(&mut self, start: usize, new: Self) {
        write_rows(&mut self.words, start, new.words);
        for (measure, new) in self.measures.iter_mut().zip(new.measures) {
            write_rows(measure, start, new);
        }
    }

    pub(super) fn bytes(&self, rows: Rows) -> usize {
        let measures = self.measures.iter().map(|measure| buffer_bytes(measure, rows));
        buffer_bytes(&self.words, rows) + measures.sum::<usize>()
    }

    pub(super) fn visit_state(&mut self, visitor: &mut dyn StateVisitor) {
        visitor.tensor(StateTensor::Int2(&mut self.words));
        for measure in &mut self.measures {
            visitor.tensor(StateTensor::Float2(measure));
        }
    }

    pub(super) fn save(&self) -> Result<Parts> {
        let mut parts = Parts::default();
        parts.put("words", &self.words)?;
        for (number, measure) in self.measures.iter().enumerate() {
            parts.put(&format!("measure.{number}"), measure)?;
        }
        Ok(parts)
    }

    /// Restores pages of these widths.
    pub(super) fn restore(
        mut parts: Parts,
        pages: usize,
        widths: &Widths,
        options: &StoreOptions,
    ) -> Result<Self> {
        let device = &options.device;
        let words = parts.take_int("words", [pages, widths.words], Some(DType::I32), device)?;
        let measures = widths.measures.iter().enumerate().map(|(number, &width)| {
            parts.take_float(&format!("measure.{number}"), [pages, width], device)
        });
        Ok(Self { words, measures: measures.collect::<Result<_>>()? })
    }

    fn map(
        &self,
        words: impl FnOnce(Tensor<2, Int>) -> Tensor<2, Int>,
        measure: impl Fn(Tensor<2>) -> Tensor<2>,
    ) -> Self {
        Self {
            words: words(self.words.clone()),
            measures: self.measures.iter().cloned().map(measure).collect(),
        }
    }
}

pub(super) fn first_rows<const D: usize, K: Basic>(x: &Tensor<D, K>, count: usize) -> Tensor<D, K> {
    x.clone().narrow(0, 0, count)
}

/// The first `count` rows, in a buffer with room for `capacity`.
pub(super) fn with_room<const D: usize, K: Basic + Numeric>(
    x: &Tensor<D, K>,
    count: usize,
    capacity: usize,
    ops: &dyn Ops,
) -> Tensor<D, K> {
    let mut shape = x.dims();
    shape[0] = capacity;
    let mut room = zeros(shape, x.dtype(), &x.device(), ops);
    write_rows(&mut room, 0, first_rows(x, count));
    room
}

/// Overwrites the rows from `start` on. The buffer is moved out and back, so a backend that owns it
/// alone writes in place.
pub(super) fn write_rows<const D: usize, K: Basic>(
    buffer: &mut Tensor<D, K>,
    start: usize,
    rows: Tensor<D, K>,
) {
    let mut ranges = buffer.dims().map(|size| 0..size);
    ranges[0] = start..start + rows.dims()[0];
    buffer.inplace(|buffer| buffer.slice_assign(ranges, rows));
}
