use burn::tensor::{DType, Tensor};

use super::packed::{Packed, Widths};
use crate::ops::PackedGroups;

/// How the keys and values of a page are packed.
pub(super) trait Codec: Clone + std::fmt::Debug + Send + Sync + 'static {
    /// Tokens of a page.
    fn group(&self) -> usize;

    /// The last so many tokens at least stay as they are.
    fn residual(&self) -> usize;

    /// What a page of keys has, and one of values.
    fn widths(&self, head_dim: usize) -> [Widths; 2];

    /// Packs keys and values, each `[pages, group, head_dim]`; measures are held in `dtype`.
    fn pack(&self, keys: Tensor<3>, values: Tensor<3>, dtype: DType) -> [Packed; 2];

    /// The keys and values again, f32, `[pages, group, head_dim]`.
    fn unpack(&self, pages: &[Packed; 2], head_dim: usize) -> [Tensor<3>; 2];

    /// The bits of a number, keys and values as a kernel reads them; `None` if none does.
    fn groups(&self, pages: &[Packed; 2]) -> Option<(usize, [PackedGroups; 2])> {
        let _ = pages;
        None
    }

    /// Of so many entries those that stay as they are.
    fn kept_full(&self, entries: usize) -> usize {
        match entries.checked_sub(self.residual()) {
            Some(older) => self.residual() + older % self.group(),
            None => entries,
        }
    }
}
