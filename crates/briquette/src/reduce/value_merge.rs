use burn::tensor::{DType, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::{ReduceInput, Reduced, Reducer, host};
use crate::{
    Error, Result,
    cache::Track,
    check,
    ops::{AccumulateInput, Selection},
    score::{Observes, group_mean},
};

/// Adds the values of evicted entries to those of the kept ones behind them: CaM (Zhang et al., 2024).
///
/// An evicted entry is spread evenly over the next `window` kept entries, with a probability: its accumulated
/// attention over the mean of theirs, at most 1. The draw is a function of seed, layer, head and position, so
/// every backend, batch and run draws the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueMerge {
    /// Kept entries that share an evicted value.
    pub window: usize,
    /// The seed of the draws.
    #[serde(default)]
    pub seed: u64,
    /// Whether what is evicted of a prompt is merged too. A prompt evicts many tokens at once, and each adds to the
    /// values of the few that are kept: values grow with its length. Without, merging is what a decoded token brings.
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
        check::count("reduce.window", self.window)
    }

    fn observes(&self) -> Observes {
        Observes::column_sums()
    }

    fn reduce(&self, input: ReduceInput<'_>) -> Result<Reduced> {
        let device = input.entries.keys.device();
        let heads = input.shape.kv_heads;
        let layer = input.layer;
        let split = host::split(&input)?;
        let kept = Selection::of_heads(&host::columns(&split.kept, &input), heads, &device);
        if input.prompt && !self.prompts {
            let entries = input.entries.select(&kept, input.ops);
            return Ok(Reduced { entries, counts: kept.counts, state: None });
        }
        let Some(attention) = input.entries.tracks.get(Track::Sums).cloned() else {
            return Err(Error::Stage {
                stage: "reducer",
                name: self.name().to_owned(),
                reason: "was called without its column sums".into(),
            });
        };
        let attention = host::Columns::read(group_mean(attention, input.shape))?;
        let positions = input.entries.positions.clone().try_into_vec_as::<i64>()?;
        let columns = input.entries.columns();
        let evicted = Selection::of_heads(&host::columns(&split.evicted, &input), heads, &device);
        let counts = kept.counts.clone();
        let width = kept.width();

        // Where each evicted entry begins to be added, and how much of it.
        let (mut starts, mut shares) = (Vec::new(), Vec::new());
        for (head, &held) in input.held.iter().enumerate() {
            let attention = attention.of(head, held);
            let positions = &positions[(head + 1) * columns - held..];
            let (kept, fillers) = (&split.kept[head], width - counts[head]);
            let (mut starts_of_head, mut shares_of_head) = (Vec::new(), Vec::new());
            for &entry in &split.evicted[head] {
                let start = kept.partition_point(|&other| other < entry);
                let end = (start + self.window).min(kept.len());
                let behind = &kept[start..end];
                let number = behind.len() as f32;
                let mean = behind.iter().map(|&other| attention[other]).sum::<f32>() / number;
                // Nothing over nothing is nothing, and something over nothing certain.
                let chance = if attention[entry] > 0.0 { attention[entry] / mean } else { 0.0 };
                let drawn = self.uniform(layer, head % heads, positions[entry]);
                let merged = !behind.is_empty() && drawn < chance.min(1.0);
                starts_of_head.push(fillers + start);
                shares_of_head.push(if merged { 1.0 / number } else { 0.0 });
            }
            starts.push(starts_of_head);
            shares.push(shares_of_head);
        }
        let slot: Tensor<3, Int> = Selection::of_heads(&starts, heads, &device).indices;
        let weights = host::scalars(&shares, heads, &device);

        let ReduceInput { entries, ops, .. } = input;
        let values = ops.compact(entries.values.clone(), &evicted);
        let mut entries = entries.select(&kept, ops);
        let added = ops.accumulate(AccumulateInput {
            x: values,
            weights,
            slot,
            span: self.window,
            slots: width,
        });
        let dtype = entries.values.dtype();
        entries.values = (entries.values.cast(DType::F32) + added).cast(dtype);
        Ok(Reduced { entries, counts, state: None })
    }
}

impl ValueMerge {
    /// A number in 0..1 for a token: permutations modulo a prime small enough for 32-bit integers, so that a
    /// kernel can draw the same.
    fn uniform(&self, layer: usize, head: usize, position: i64) -> f32 {
        const PRIME: u64 = 46_337;
        let position = position.max(0) as u64;
        let mut x = 0;
        for part in [self.seed, layer as u64, head as u64, position, 0] {
            x = (x + part % PRIME) % PRIME;
            x = (x * 25_173 + 13_849) % PRIME;
            x = x * x % PRIME * x % PRIME;
        }
        x as f32 / PRIME as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_even() {
        let merge = ValueMerge { window: 4, seed: 7, prompts: false };
        for (layer, head) in [(0, 0), (0, 1), (3, 2)] {
            let mut tenths = [0; 10];
            for position in 0..10_000 {
                tenths[(merge.uniform(layer, head, position) * 10.0) as usize] += 1;
            }
            assert!(tenths.iter().all(|&count| (850..1150).contains(&count)), "{tenths:?}");
        }
    }
}
