use burn::tensor::{DType, Tensor};

use crate::{
    LayerView, Result,
    ops::{Selection, Split},
};

/// Splits the entries as eviction does: the protected entries and then the highest scores are kept.
pub(super) fn split(view: &LayerView<'_>, keep: &[usize]) -> Result<Split> {
    let mut split = view.split(keep)?;
    if view.packs_heads {
        split.kept = split.kept.rounded();
    }
    Ok(split)
}

/// Mask of a selection: 1 at its columns, 0 at its padding, `[batch, kv_heads, width]`, f32.
pub(super) fn present(selection: &Selection) -> Tensor<3> {
    let options = (&selection.indices.device(), DType::F32);
    let ones = Tensor::ones(selection.indices.dims(), options);
    match selection.padding_mask() {
        None => ones,
        Some(padding) => ones.mask_fill(padding, 0.0),
    }
}
