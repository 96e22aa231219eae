//! Functions for reducers that decide on the host.

use burn::tensor::{DType, Device, Tensor};

use crate::{Error, LayerView, Result, ops::constant_floats};

/// Numbers of the entries of a layer on the host, one per column.
pub(super) struct Columns {
    numbers: Vec<f32>,
    width: usize,
}

impl Columns {
    /// Reads `x`, `[batch, kv_heads, entries]`.
    pub(super) fn read(x: Tensor<3>) -> Result<Self> {
        let width = x.dims()[2];
        Ok(Self { numbers: x.cast(DType::F32).try_into_vec_as::<f32>()?, width })
    }

    /// Returns the last `held` numbers of a head.
    pub(super) fn of(&self, head: usize, held: usize) -> &[f32] {
        let end = (head + 1) * self.width;
        &self.numbers[end - held..end]
    }
}

/// Refuses scores that cannot be ordered.
pub(super) fn check_scores(scores: &Columns, view: &LayerView<'_>) -> Result<()> {
    for (head, &held) in view.lengths.iter().enumerate() {
        let count = scores.of(head, held).iter().filter(|score| score.is_nan()).count();
        if count > 0 {
            return Err(Error::NotFinite { what: "scores", layer: view.layer, count });
        }
    }
    Ok(())
}

/// Turns indices of entries, counted from the first entry of their head, into columns.
pub(super) fn columns(lists: &[Vec<usize>], view: &LayerView<'_>) -> Vec<Vec<usize>> {
    let width = view.entries.columns();
    let place = |(list, &held): (&Vec<usize>, &usize)| {
        list.iter().map(|&entry| width - held + entry).collect()
    };
    lists.iter().zip(view.lengths).map(place).collect()
}

/// Tensor of one number per column of a selection, 0 at its padding: `[batch, kv_heads, width]`.
pub(super) fn scalars(lists: &[Vec<f32>], heads: usize, device: &Device) -> Tensor<3> {
    let width = lists.iter().map(Vec::len).max().unwrap_or(0);
    let mut numbers = Vec::with_capacity(lists.len() * width);
    for list in lists {
        numbers.extend(std::iter::repeat_n(0.0, width - list.len()));
        numbers.extend(list);
    }
    constant_floats("scalars", numbers, [lists.len() / heads, heads, width], device)
}
