use burn::tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};

use super::{InPlace, Reduced, Reducer, split::split};
use crate::{
    LayerView, Result, check,
    ops::{
        AttentionStatistics, EmaInput, EmaOutput, Entries, EvictMergeInput, MergeInput,
        NearestInput, NearestOutput, Selection, Split, select_entries,
    },
    stage::is_default,
};

/// Merges each evicted entry into the kept one with the most similar key, if it is similar enough:
/// D2O (Wan et al., 2024, Eq. 9 to 12).
///
/// The threshold is an exponential moving average per layer and batch row. It begins as the mean
/// over all evicted entries of their highest similarity; every later compression averages it, with
/// weight `beta` on the newest mean. A kept entry weighs e, an entry merged into it exp(cosine);
/// the weights of keys and values are the same and sum to one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmaMerge {
    /// Weight of the newest mean.
    pub beta: f64,
    /// Evicted entries that are merged.
    #[serde(default, skip_serializing_if = "is_default")]
    pub threshold: Threshold,
    /// Rows by which entries are compared (Table 9).
    #[serde(default, skip_serializing_if = "is_default")]
    pub compare: Compare,
    /// Weights of a kept entry and of those merged into it (Table 9).
    #[serde(default, skip_serializing_if = "is_default")]
    pub weights: EmaWeights,
}

/// Evicted entries that an [`EmaMerge`] merges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Threshold {
    /// Entries with a similarity of at least the moving average (Eq. 10).
    #[default]
    Ema,
    /// All entries (Table 6, without the EMA threshold).
    None,
}

/// Rows by which an [`EmaMerge`] compares entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Compare {
    /// Keys; values are merged along with their keys.
    #[default]
    Keys,
    /// Values; keys are merged along with their values.
    Values,
    /// Keys compared by keys and values by values, each with a nearest entry and a threshold of its
    /// own.
    Each,
}

/// Weights of the entries in the merge of an [`EmaMerge`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum EmaWeights {
    /// e for the kept entry, exp(cosine) for each merged one (Eq. 12).
    #[default]
    Cosine,
    /// Equal weights.
    Average,
}

impl Default for EmaMerge {
    /// Default of the paper: β = 0.7.
    fn default() -> Self {
        Self {
            beta: 0.7,
            threshold: Threshold::default(),
            compare: Compare::default(),
            weights: EmaWeights::default(),
        }
    }
}

impl Reducer for EmaMerge {
    fn name(&self) -> &str {
        "ema-merge"
    }

    fn summary(&self) -> String {
        match self.threshold {
            Threshold::Ema => format!("{}, β {}", self.name(), self.beta),
            Threshold::None => format!("{}, all", self.name()),
        }
    }

    fn check(&self) -> Result<()> {
        check::share("reduce.beta", self.beta)
    }

    fn reduces_in_place(&self) -> bool {
        let Self { beta: _, threshold, compare, weights } = *self;
        threshold == Threshold::Ema && compare == Compare::Keys && weights == EmaWeights::Cosine
    }

    fn in_place(&self, view: &LayerView<'_>) -> Result<InPlace> {
        let before = view.state.cloned();
        Ok(InPlace::Merge(Box::new(EvictMergeInput { before, beta: self.beta })))
    }

    fn is_capturable(&self) -> bool {
        true
    }

    fn initial_state(&self) -> f64 {
        EmaInput::NONE_YET
    }

    fn reduce(&self, view: &LayerView<'_>, keep: &[usize]) -> Result<Reduced> {
        let Split { kept, rest: evicted } = split(view, keep)?;
        let counts = kept.counts.clone();
        let width = kept.width();
        let LayerView { entries, ops, .. } = *view;
        let gone = Entries { statistics: AttentionStatistics::default(), ..entries.clone() };
        let gone = select_entries(gone, &evicted, ops)?;
        let Entries { keys, values, positions, statistics, clustering } =
            select_entries(entries.clone(), &kept, ops)?;
        let step = Step {
            merge: self,
            view,
            evicted: &evicted,
            padding: counts.iter().map(|&count| width - count).collect(),
        };

        let by_keys = |left: [Tensor<4>; 2]| {
            let nearest = step.nearest(&gone.keys, left[0].clone())?;
            step.merge(nearest, &gone, left, 0)
        };
        let by_values = |left: [Tensor<4>; 2], number| {
            let nearest = step.nearest(&gone.values, left[1].clone())?;
            step.merge(nearest, &gone, left, number)
        };
        // The rows are moved: those that nobody else holds are merged in place.
        let ((keys, values), state) = match self.compare {
            Compare::Keys => by_keys([keys, values])?,
            Compare::Values => by_values([keys, values], 0)?,
            Compare::Each => {
                let ((merged, _), of_keys) = by_keys([keys.clone(), values.clone()])?;
                let ((_, values), of_values) = by_values([keys, values], 1)?;
                ((merged, values), Tensor::cat(vec![of_keys, of_values], 1))
            }
        };
        let entries = Entries { keys, values, positions, statistics, clustering };
        Ok(Reduced { state: Some(state), ..Reduced::new(entries, counts) })
    }
}

/// Tensors and parameters of one call.
struct Step<'a> {
    merge: &'a EmaMerge,
    view: &'a LayerView<'a>,
    evicted: &'a Selection,
    /// Number of padding columns before the kept entries of each head.
    padding: Vec<usize>,
}

impl Step<'_> {
    /// For each evicted row the kept row that it is most similar to.
    fn nearest(&self, from: &Tensor<4>, to: Tensor<4>) -> Result<NearestOutput> {
        let (pairs, padding) = (vec![(from.clone(), to)], self.padding.clone());
        Ok(self.view.ops.nearest(NearestInput { pairs, padding })?)
    }

    /// Merges the evicted entries into the kept keys and values. Returns these, and the threshold,
    /// `[batch, 1]`, which is the `number`-th of the state.
    fn merge(
        &self,
        NearestOutput { similarity, index }: NearestOutput,
        gone: &Entries,
        [keys, values]: [Tensor<4>; 2],
        number: usize,
    ) -> Result<((Tensor<4>, Tensor<4>), Tensor<2>)> {
        let Self { merge, view, evicted, .. } = self;
        let ops = view.ops;
        let EmaOutput { weights, threshold } = ops.ema_weights(EmaInput {
            similarity: similarity.clone(),
            counts: &evicted.counts,
            before: view.state.map(|state| state.clone().narrow(1, number, 1)),
            beta: merge.beta,
        })?;
        let weights = match merge.threshold {
            Threshold::Ema => weights,
            Threshold::None => {
                let weights = similarity.exp();
                match evicted.padding_mask() {
                    None => weights,
                    Some(nothing) => weights.mask_fill(nothing, 0.0),
                }
            }
        };
        let (own, weights) = match merge.weights {
            EmaWeights::Cosine => (std::f64::consts::E, weights),
            // What is merged weighs more than nothing.
            EmaWeights::Average => (1.0, weights.greater_scalar(0.0).float().cast(DType::F32)),
        };
        let [batch, heads, rows, _] = keys.dims();
        let own = Tensor::full([batch, heads, rows], own, (&keys.device(), DType::F32));
        let merged = ops.merge(MergeInput {
            keys,
            values,
            own,
            other_keys: gone.keys.clone(),
            other_values: gone.values.clone(),
            weights,
            slot: index,
            directions: false,
        })?;
        Ok((merged, threshold))
    }
}
