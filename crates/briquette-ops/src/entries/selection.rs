use burn::tensor::{Bool, Device, Int, Tensor};

use super::columns::{found_columns, iota};
use crate::constant::constant_ints;

/// Selected entries of a layer, in the order of their positions.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Columns of the selected entries, `[batch, kv_heads, kept]`. A head that keeps fewer than the
    /// one with the most begins with padding: indices of its first column, which become padding of
    /// the result.
    pub indices: Tensor<3, Int>,
    /// Number of selected entries per batch row and kv head, rows first.
    pub counts: Vec<usize>,
}

/// Entries of a layer split into those to keep and the others.
#[derive(Clone, Debug)]
pub struct Split {
    /// The entries to keep.
    pub kept: Selection,
    /// The others.
    pub rest: Selection,
}

impl Selection {
    /// Selects all columns, by position, `[batch, kv_heads, columns]`: padding first. Positions are
    /// read from a device that does not sort.
    pub fn by_position(positions: Tensor<3, Int>) -> Self {
        let [batch, heads, columns] = positions.dims();
        let indices = found_columns(positions.argsort(2));
        Self { indices, counts: vec![columns; batch * heads] }
    }

    /// Selects the entries of one list per batch row and head, rows first, in its order.
    pub fn of_heads(lists: &[impl AsRef<[usize]>], heads: usize, device: &Device) -> Self {
        let width = lists.iter().map(|list| list.as_ref().len()).max().unwrap_or(0);
        let lists = || lists.iter().map(AsRef::as_ref);
        let counts: Vec<usize> = lists().map(<[usize]>::len).collect();
        let mut indices = Vec::with_capacity(counts.len() * width);
        for list in lists() {
            indices.extend(std::iter::repeat_n(0, width - list.len()));
            indices.extend(list.iter().map(|&entry| entry as i64));
        }
        let dims = [counts.len() / heads, heads, width];
        Self { indices: constant_ints("selection", indices, dims, device), counts }
    }

    /// Selects the same entries in each of `heads` heads: one ascending list per batch row.
    pub fn of_rows(rows: &[Vec<usize>], heads: usize, device: &Device) -> Self {
        let lists: Vec<&[usize]> =
            rows.iter().flat_map(|row| std::iter::repeat_n(&row[..], heads)).collect();
        Self::of_heads(&lists, heads, device)
    }

    /// Adds padding, if heads differ, up to [one of few widths](bucketed_widths).
    pub fn rounded(self) -> Self {
        let width = bucketed_widths(&self.counts);
        self.widened(width)
    }

    /// Adds padding up to so many columns, if that is more than it has.
    pub fn widened(self, columns: usize) -> Self {
        let [batch, heads, width] = self.indices.dims();
        let missing = columns.saturating_sub(width);
        if missing == 0 {
            return self;
        }
        let padding = Tensor::zeros([batch, heads, missing], &self.indices.device());
        Self { indices: Tensor::cat(vec![padding, self.indices], 2), counts: self.counts }
    }

    /// Whether all heads keep the same number.
    pub fn is_full(&self) -> bool {
        let width = self.width();
        self.counts.iter().all(|&count| count == width)
    }

    /// Number of columns of the result.
    pub fn width(&self) -> usize {
        self.indices.dims()[2]
    }

    /// Mask of the padding columns of the result, `[batch, kv_heads, kept]`; `None` if there are
    /// none.
    pub fn padding_mask(&self) -> Option<Tensor<3, Bool>> {
        if self.is_full() {
            return None;
        }
        let width = self.width();
        let missing = self.counts.iter().map(|count| width - count);
        Some(padding_mask(missing, self.indices.dims(), &self.indices.device()))
    }
}

/// Returns the number of columns for heads of these lengths where padding costs next to nothing:
/// the longest, and if they differ up to an eighth more, one of eight widths between a power of two
/// and the next. A backend may keep what it sends along with a launch by its shapes (CubeCL's CUDA
/// does, for 4 096 of them); layers and steps whose longest heads differ by a few are to share it.
pub fn bucketed_widths(counts: &[usize]) -> usize {
    let longest = counts.iter().copied().max().unwrap_or(0);
    if counts.iter().all(|&count| count == longest) {
        return longest;
    }
    bucketed_width(longest)
}

/// Returns the first of the [few widths](bucketed_widths) that is at least so many columns, for
/// lengths that change from step to step.
pub fn bucketed_width(columns: usize) -> usize {
    columns.next_multiple_of(1 << (columns / 8).max(1).ilog2())
}

/// Returns the mask of the padding columns of `[batch, kv_heads, columns]`: the first `missing` of
/// each head.
pub fn padding_mask(
    missing: impl Iterator<Item = usize>,
    dims: [usize; 3],
    device: &Device,
) -> Tensor<3, Bool> {
    let [batch, heads, _] = dims;
    let missing: Vec<i64> = missing.map(|missing| missing as i64).collect();
    // One number a head goes to the device, not one a column.
    let missing = constant_ints("padding", missing, [batch, heads, 1], device);
    iota(dims, device).lower(missing.expand(dims))
}
