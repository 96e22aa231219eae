use burn::tensor::{DType, Int, Tensor};

use super::packed::{Packed, Widths};
use crate::ops::{Ops, PackedNumbers};

/// Packing of the keys and values of a page.
pub(super) trait Codec: Clone + std::fmt::Debug + Send + Sync + 'static {
    /// Tokens of a page.
    fn group(&self) -> usize;

    /// Minimum number of last tokens that stay unpacked.
    fn residual(&self) -> usize;

    /// Number of key channels that a page holds; `None` if it holds all. Each head chooses its
    /// channels by the last queries of a prompt.
    fn key_channels(&self, _head_dim: usize) -> Option<usize> {
        None
    }

    /// Words and measures of a page of keys and of a page of values, or of a page that holds both.
    fn widths(&self, head_dim: usize) -> Vec<Widths>;

    /// Packs keys and values, each `[pages, group, head_dim]`; measures are held in `dtype`.
    /// `channels` are the [`key_channels`](Self::key_channels) of each page, ascending,
    /// `[pages, kept]`.
    fn pack(
        &self,
        keys: Tensor<3>,
        values: Tensor<3>,
        channels: Option<Tensor<2, Int>>,
        dtype: DType,
        ops: &dyn Ops,
    ) -> Vec<Packed>;

    /// Unpacks the keys and values, f32, `[pages, group, head_dim]`.
    fn unpack(&self, pages: &[Packed], head_dim: usize) -> [Tensor<3>; 2];

    /// Keys and values as a kernel reads them; `None` if no kernel does.
    fn numbers(&self, _pages: &[Packed]) -> Option<PackedNumbers> {
        None
    }

    /// Number of entries, out of `entries`, that stay unpacked.
    fn kept_full(&self, entries: usize) -> usize {
        match entries.checked_sub(self.residual()) {
            Some(older) => self.residual() + older % self.group(),
            None => entries,
        }
    }
}
