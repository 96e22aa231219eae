use burn::tensor::{DType, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::{
    ReduceInput, Reduced, Reducer,
    split::{present, split},
};
use crate::{
    Result,
    cache::{Entries, Tracks},
    check,
    ops::{MergeInput, Nearest, NearestInput, Split},
};

/// Merges each evicted entry into the kept one with the most similar key, if it is similar enough: D2O (Wan et
/// al., 2024, Eq. 5 to 9).
///
/// The threshold is an exponential moving average, one a layer and batch row: the mean over all evicted
/// entries of their highest similarity, `beta` of it at every later compression. A kept entry weighs e, one merged
/// into it exp(cosine); the weights of keys and values are the same and sum to one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmaMerge {
    /// The weight of the newest mean.
    pub beta: f64,
}

/// The threshold of a row that has evicted nothing so far: no cosine is as low.
const NONE_YET: f64 = -4.0;

impl Reducer for EmaMerge {
    fn name(&self) -> &str {
        "ema-merge"
    }

    fn summary(&self) -> String {
        format!("{}, β {}", self.name(), self.beta)
    }

    fn check(&self) -> Result<()> {
        check::share("reduce.beta", self.beta)
    }

    fn reduce(&self, input: ReduceInput<'_>) -> Result<Reduced> {
        let device = input.entries.keys.device();
        let heads = input.shape.kv_heads;
        let Split { kept, rest: evicted } = split(&input)?;
        let counts = kept.counts.clone();
        let width = kept.width();
        let ReduceInput { entries, ops, .. } = input;
        let gone = Entries { tracks: Tracks::default(), ..entries.clone() }.select(&evicted, ops);
        let mut entries = entries.select(&kept, ops);

        let Nearest { similarity, index } = ops.nearest(NearestInput {
            pairs: vec![(gone.keys.clone(), entries.keys.clone())],
            fillers: counts.iter().map(|&count| width - count).collect(),
        });

        // The mean of the highest similarities of a row, over all its heads.
        let [batch, _, most] = similarity.dims();
        let own = present(&evicted);
        let numbers: Vec<f32> =
            evicted.counts.chunks(heads).map(|row| row.iter().sum::<usize>() as f32).collect();
        let numbers = TensorData::new(numbers, [batch, 1]);
        let numbers = Tensor::<2>::from_data(numbers, (&device, DType::F32));
        let total = (similarity.clone() * own.clone()).reshape([batch, heads * most]).sum_dim(1);
        let mean = total / numbers.clone().clamp_min(1.0);
        let before = match input.state {
            Some(before) => before.clone(),
            None => Tensor::full([batch, 1], NONE_YET, (&device, DType::F32)),
        };
        let blend = mean.clone() * self.beta + before.clone() * (1.0 - self.beta);
        let blend = blend.mask_where(before.clone().lower_scalar(NONE_YET / 2.0), mean);
        // A row that evicts nothing keeps its threshold.
        let threshold = blend.mask_where(numbers.equal_scalar(0.0), before);
        let limit = threshold.clone().reshape([batch, 1, 1]).expand(similarity.dims());
        let merged = similarity.clone().greater_equal(limit).float().cast(DType::F32) * own;
        let weights = similarity.exp() * merged;

        let own = Tensor::full([batch, heads, width], std::f64::consts::E, (&device, DType::F32));
        (entries.keys, entries.values) = ops.merge(MergeInput {
            keys: entries.keys,
            values: entries.values,
            own,
            other_keys: gone.keys,
            other_values: gone.values,
            weights,
            slot: index,
            directions: false,
        });
        Ok(Reduced { entries, counts, state: Some(threshold) })
    }
}
