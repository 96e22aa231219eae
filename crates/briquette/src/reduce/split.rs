use burn::tensor::{DType, Tensor};

use super::ReduceInput;
use crate::{
    Result,
    ops::{AccumulateInput, SelectInput, Selection},
};

/// What is kept of each head and what is not, without a round trip where selection runs on the device.
pub(super) struct Split {
    pub(super) kept: Selection,
    pub(super) evicted: Selection,
}

impl Split {
    /// Selects as eviction would: the protected, then the highest scores.
    pub(super) fn new(input: &ReduceInput<'_>) -> Result<Self> {
        let mut kept = input.select()?;
        if input.rounds {
            kept = kept.rounded();
        }
        let columns = input.entries.columns();
        let [batch, heads, width] = kept.indices.dims();
        let options = (&input.entries.keys.device(), DType::F32);
        // What is not kept scores 1, what is kept 0.
        let is_kept = input.ops.accumulate(AccumulateInput {
            x: Tensor::ones([batch, heads, width, 1], options),
            weights: present(&kept),
            slot: kept.indices.clone(),
            span: 1,
            slots: columns,
        });
        let scores = is_kept.neg().add_scalar(1.0).reshape([batch, heads, columns]);
        let left = input.held.iter().zip(&kept.counts).map(|(held, kept)| held - kept);
        let evicted = input.ops.select(SelectInput {
            layer: input.layer,
            scores: &scores,
            held: input.held,
            keep: &left.collect::<Vec<_>>(),
            sinks: 0,
            recent: &vec![0; input.held.len()],
            check: false,
        })?;
        Ok(Self { kept, evicted })
    }
}

/// 1 at each column of a selection, 0 at its fillers: `[batch, kv_heads, width]`, f32.
pub(super) fn present(selection: &Selection) -> Tensor<3> {
    let options = (&selection.indices.device(), DType::F32);
    let ones = Tensor::ones(selection.indices.dims(), options);
    match selection.fillers() {
        None => ones,
        Some(fillers) => ones.mask_fill(fillers, 0.0),
    }
}
