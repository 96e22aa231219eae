//! Best entries of each head.

use burn::tensor::{IndexingUpdateOp, Tensor};

use crate::{
    LayerView, Result,
    ops::{SelectInput, constant_floats},
};

/// Mask of the `keep` best entries of each head, rows first: 1 at these, 0 at others,
/// `[batch, kv_heads, entries]`, f32. The first `sinks` and the last `recent` entries are among
/// them.
pub(crate) fn best(
    view: &LayerView<'_>,
    scores: &Tensor<3>,
    keep: &[usize],
    sinks: usize,
    recent: &[usize],
) -> Result<Tensor<3>> {
    let none = scores.zeros_like();
    if keep.iter().all(|&keep| keep == 0) {
        return Ok(none);
    }
    let selection = view.ops.select(SelectInput {
        scores,
        lengths: view.lengths,
        keep,
        sinks,
        recent,
        // A NaN among these is one among the scores made of them, where it is looked for.
        check: false,
    })?;
    // Fillers of the selection point at the first entry, and add nothing.
    let width = selection.width();
    let ones = selection.counts.iter().flat_map(|&count| {
        (0..width).map(move |column| if column + count >= width { 1.0 } else { 0.0 })
    });
    let ones = constant_floats("ones", ones.collect(), selection.indices.dims(), &scores.device());
    Ok(none.scatter(2, selection.indices, ones, IndexingUpdateOp::Add))
}
