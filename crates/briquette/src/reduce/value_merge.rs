use burn::tensor::{DType, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::{
    InPlace, Reduced, Reducer,
    split::{present, split},
};
use crate::{
    LayerView, Result, check,
    ops::{
        AccumulateInput, EvictSpreadInput, Split, Statistic, counting, gather_positions,
        gather_rows, gather_scalars, select_entries,
    },
    score::draw,
    stage::AttentionRequest,
};

/// Adds the values of evicted entries to those of the kept ones behind them: CaM (Zhang et al.,
/// 2024).
///
/// An evicted entry is spread evenly over the next `window` kept entries, with a probability: its
/// accumulated attention over the mean of theirs, at most 1. The draw is a function of seed, layer,
/// head and position, so every backend, batch and run draws the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueMerge {
    /// Number of kept entries that share an evicted value.
    pub window: usize,
    /// Seed of the draws.
    #[serde(default)]
    pub seed: u64,
    /// Whether entries evicted from a prompt are merged too. A prompt evicts many tokens at once,
    /// and each adds to the values of the few that are kept: values grow with its length. Otherwise
    /// only entries evicted by a decoded token are merged.
    #[serde(default)]
    pub prompts: bool,
}

impl Reducer for ValueMerge {
    fn name(&self) -> &str {
        "value-merge"
    }

    fn summary(&self) -> String {
        format!("{} {}", self.name(), self.window)
    }

    fn check(&self) -> Result<()> {
        check::window("reduce.window", self.window)
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::column_sums()
    }

    fn is_capturable(&self) -> bool {
        true
    }

    fn reduces_in_place(&self) -> bool {
        true
    }

    fn in_place(&self, view: &LayerView<'_>) -> Result<InPlace> {
        let attention = view.group_mean(view.statistic(Statistic::Sums, self.name())?);
        let drawn = draw(self.seed, view.layer, view.positions().clone());
        let spread = EvictSpreadInput { attention, drawn, window: self.window };
        Ok(InPlace::Spread(Box::new(spread)))
    }

    fn reduce(&self, view: &LayerView<'_>, keep: &[usize]) -> Result<Reduced> {
        let LayerView { entries, ops, .. } = *view;
        if view.prompt && !self.prompts {
            let kept = view.select(keep)?;
            let entries = select_entries(entries.clone(), &kept, ops)?;
            return Ok(Reduced::new(entries, kept.counts));
        }
        let split = split(view, keep)?;
        let (start, share) = self.shares(view, &split)?;
        let Split { kept, rest: evicted } = split;
        let values = gather_rows(entries.values.clone(), &evicted);
        let mut entries = select_entries(entries.clone(), &kept, ops)?;
        let added = ops.accumulate(AccumulateInput {
            x: values,
            weights: share,
            slot: start,
            span: self.window,
            slots: kept.width(),
        })?;
        let dtype = entries.values.dtype();
        entries.values = (entries.values.cast(DType::F32) + added).cast(dtype);
        Ok(Reduced::new(entries, kept.counts))
    }
}

impl ValueMerge {
    /// Returns the first of the kept entries that each evicted one is added to, and the weight with
    /// which it is added to each of them, `[batch, kv_heads, evicted]`.
    fn shares(&self, view: &LayerView<'_>, split: &Split) -> Result<(Tensor<3, Int>, Tensor<3>)> {
        let LayerView { layer, entries, .. } = *view;
        let attention = view.group_mean(view.statistic(Statistic::Sums, self.name())?);
        let Split { kept, rest: evicted } = split;
        let device = attention.device();
        let [batch, heads, most] = evicted.indices.dims();
        let width = kept.width();
        // Before an entry stand as many kept ones as entries less evicted ones. Fillers of both
        // stand at the left: as many as there are columns more than entries held, and more where
        // another head has more of the one or other.
        let place = counting(0..most, &device).reshape([1, 1, most]);
        let padding = (width + most) as i64 - entries.columns() as i64;
        let start = (evicted.indices.clone() - place + padding).clamp(0, width as i64);
        let number = start.clone().neg().add_scalar(width as i64).clamp_max(self.window as i64);

        let window = [batch, heads, most, self.window];
        let behind =
            counting(0..self.window, &device).reshape([1, 1, 1, self.window]).expand(window)
                + start.clone().unsqueeze_dim::<4>(3).expand(window);
        let none = behind.clone().greater_equal_scalar(width as i64);
        let column = behind.clamp_max(width as i64 - 1).reshape([batch, heads, most * self.window]);
        let of_kept = gather_scalars(attention.clone(), kept).gather(2, column);
        let sum = of_kept.reshape(window).mask_fill(none, 0.0).sum_dim(3).squeeze_dim::<3>(3);

        // drawn < attention / (sum / number), where 0 / 0 is 0 and anything else over 0 is certain.
        let drawn = draw(self.seed, layer, gather_positions(entries.positions.clone(), evicted));
        let number = number.float().cast(DType::F32);
        let own = gather_scalars(attention, evicted);
        let merged = (drawn * sum).lower(own * number.clone());
        let share = number.clamp_min(1.0).recip() * present(evicted);
        Ok((start, share.mask_fill(merged.bool_not(), 0.0)))
    }
}
