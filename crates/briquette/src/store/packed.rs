use burn::tensor::{DType, Int, Tensor};

use super::StoreOptions;
use crate::{
    Result,
    device::{Rows, buffer_bytes},
    prefix::Parts,
};

/// Keys, or values, of some pages in words, with the numbers they are measured by.
///
/// What belongs to a page is one row, since devices may pad rows: CUDA pads short ones to 16 bytes.
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
    /// Words.
    pub(super) words: usize,
    /// Numbers of each measure.
    pub(super) measures: Vec<usize>,
}

impl Widths {
    /// Bytes of a page on the device.
    pub(super) fn bytes(&self, rows: Rows, dtype: DType) -> usize {
        let measures = self.measures.iter().map(|&numbers| rows.bytes(numbers, dtype.size()));
        rows.bytes(self.words, size_of::<u32>()) + measures.sum::<usize>()
    }
}

impl Packed {
    /// These pages, in this order.
    pub(super) fn select(&self, pages: &Tensor<1, Int>) -> Self {
        self.map(|words| words.select(0, pages.clone()), |x| x.select(0, pages.clone()))
    }

    /// These pages and others behind them.
    pub(super) fn followed_by(self, new: Self) -> Self {
        let measures = self.measures.into_iter().zip(new.measures);
        Self {
            words: Tensor::cat(vec![self.words, new.words], 0),
            measures: measures.map(|(held, new)| Tensor::cat(vec![held, new], 0)).collect(),
        }
    }

    /// All pages so many times.
    pub(super) fn repeated(&self, times: usize) -> Self {
        self.map(|words| words.repeat_dim(0, times), |x| x.repeat_dim(0, times))
    }

    /// Bytes on the device.
    pub(super) fn bytes(&self, rows: Rows) -> usize {
        let measures = self.measures.iter().map(|measure| buffer_bytes(measure, rows));
        buffer_bytes(&self.words, rows) + measures.sum::<usize>()
    }

    pub(super) fn save(&self) -> Result<Parts> {
        let mut parts = Parts::default();
        parts.put("words", &self.words)?;
        for (number, measure) in self.measures.iter().enumerate() {
            parts.put(&format!("measure.{number}"), measure)?;
        }
        Ok(parts)
    }

    /// Pages of these widths.
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
