use burn::tensor::{DType, Int, Tensor};

use super::packed::{Packed, Widths};
use crate::ops::{Ops, PackedNumbers};

/// Packing of the keys and values of a page.
pub(super) trait Codec: Clone + std::fmt::Debug + Send + Sync + 'static {
    /// Tokens of a page.
    fn group(&self) -> usize;

    /// The least number of last tokens that stay as they are.
    fn residual(&self) -> usize;

    /// Channels of a key that a page holds, if they are fewer than there are: which ones is chosen
    /// a head, by what the last queries of a prompt look at.
    fn key_channels(&self, head_dim: usize) -> Option<usize> {
        let _ = head_dim;
        None
    }

    /// Words and measures of a page of keys, and of one of values; or of one that holds both.
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

    /// The keys and values again, f32, `[pages, group, head_dim]`.
    fn unpack(&self, pages: &[Packed], head_dim: usize) -> [Tensor<3>; 2];

    /// Keys and values as a kernel reads them; `None` if none does.
    fn numbers(&self, pages: &[Packed]) -> Option<PackedNumbers> {
        let _ = pages;
        None
    }

    /// Number of entries that stay as they are, out of `entries`.
    fn kept_full(&self, entries: usize) -> usize {
        match entries.checked_sub(self.residual()) {
            Some(older) => self.residual() + older % self.group(),
            None => entries,
        }
    }
}
