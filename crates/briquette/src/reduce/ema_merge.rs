use burn::tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};

use super::{Reduced, Reducer, split::split};
use crate::{
    LayerView, Result, check,
    ops::{EmaInput, EmaOutput, MergeInput, NearestInput, NearestOutput, Split, select_entries},
    ops::{Entries, Tracks},
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

    fn reduce(&self, view: &LayerView<'_>, keep: &[usize]) -> Result<Reduced> {
        let device = view.entries.keys.device();
        let Split { kept, rest: evicted } = split(view, keep)?;
        let counts = kept.counts.clone();
        let width = kept.width();
        let LayerView { entries, ops, .. } = *view;
        let gone = Entries { tracks: Tracks::default(), ..entries.clone() };
        let gone = select_entries(gone, &evicted, ops)?;
        let mut entries = select_entries(entries.clone(), &kept, ops)?;

        let NearestOutput { similarity, index } = ops.nearest(NearestInput {
            pairs: vec![(gone.keys.clone(), entries.keys.clone())],
            fillers: counts.iter().map(|&count| width - count).collect(),
        })?;

        let EmaOutput { weights, threshold } = ops.ema_weights(EmaInput {
            similarity,
            counts: &evicted.counts,
            before: view.state.cloned(),
            beta: self.beta,
        })?;
        let dims = entries.positions.dims();
        let own = Tensor::full(dims, std::f64::consts::E, (&device, DType::F32));
        (entries.keys, entries.values) = ops.merge(MergeInput {
            keys: entries.keys,
            values: entries.values,
            own,
            other_keys: gone.keys,
            other_values: gone.values,
            weights,
            slot: index,
            directions: false,
        })?;
        Ok(Reduced { entries, counts, state: Some(threshold) })
    }
}
