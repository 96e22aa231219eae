//! Block prompt processing of KeyDiff: Park et al., 2025, *KeyDiff: Key Similarity-Based KV Cache
//! Eviction for Long-Context LLM Inference in Resource-Constrained Environments* ([arXiv
//! 2504.15364](https://arxiv.org/abs/2504.15364)), section 3, as BlockPress of kvpress.
//!
//! ```text
//! s[j] = 1 for the entries that are left where blocks compete one after another, 0 for others
//! ```
//!
//! Protected: what the policy says; its first tokens also while blocks compete.

use std::sync::Arc;

use burn::tensor::{DType, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::{
    Error, LayerView, Result, check,
    ops::{SelectInput, Selection},
    score::Scorer,
};

/// Score 1 for the entries that remain where another scorer drops block by block, 0 for others:
/// block prompt processing of KeyDiff (Park et al., 2025, section 3, [arXiv
/// 2504.15364](https://arxiv.org/abs/2504.15364)), as BlockPress of kvpress has it.
///
/// The first entries, as many as the budget allows, compete with the next `length`, the remaining
/// ones with the `length` after those, and so on; each time the scorer sees only these. The
/// attention has seen the whole prompt. Where it should not, give the prompt in chunks and compress
/// after each of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockWise {
    /// Number of tokens of a block.
    pub length: usize,
    /// Wrapped scorer, which looks at keys and values.
    pub of: Arc<dyn Scorer>,
}

impl BlockWise {
    /// Wraps `scorer` with blocks of `length` tokens.
    pub fn of(length: usize, scorer: impl Scorer) -> Self {
        Self { length, of: Arc::new(scorer) }
    }
}

impl Scorer for BlockWise {
    fn name(&self) -> &str {
        "block-wise"
    }

    fn summary(&self) -> String {
        format!("{} {}, {}", self.name(), self.length, self.of.summary())
    }

    fn inner(&self) -> Option<&dyn Scorer> {
        Some(self.of.as_ref())
    }

    fn check(&self) -> Result<()> {
        check::count("score.length", self.length)?;
        self.of.check()
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let dims = view.positions().dims();
        let [_, heads, columns] = dims;
        let keep: Vec<usize> =
            (0..view.lengths.len()).map(|head| view.budget[head / heads]).collect();
        // Columns that are left of each head, and how many entries have had their turn.
        let first = |(&held, &keep): (&usize, &usize)| {
            (columns - held..columns - held + keep.min(held)).collect()
        };
        let mut left: Vec<Vec<usize>> = view.lengths.iter().zip(&keep).map(first).collect();
        let mut turns: Vec<usize> = left.iter().map(Vec::len).collect();
        while turns.iter().zip(view.lengths).any(|(turn, held)| turn < held) {
            for ((left, turn), &held) in left.iter_mut().zip(&mut turns).zip(view.lengths) {
                let next = held.min(turn.saturating_add(self.length));
                left.extend(columns - held + *turn..columns - held + next);
                *turn = next;
            }
            self.drop(view, &mut left, &keep)?;
        }
        let mut scores = vec![0.0_f32; dims.iter().product()];
        for (head, left) in left.iter().enumerate() {
            left.iter().for_each(|column| scores[head * columns + column] = 1.0);
        }
        let device = view.positions().device();
        Ok(Tensor::from_data(TensorData::new(scores, dims), (&device, DType::F32)))
    }
}

impl BlockWise {
    /// Drops all but the best `keep` of the columns `left` of each head.
    fn drop(&self, view: &LayerView<'_>, left: &mut [Vec<usize>], keep: &[usize]) -> Result<()> {
        let heads = view.shape.kv_heads;
        let selection = Selection::of_heads(left, heads, &view.positions().device());
        let entries = view.selected(&selection)?;
        let held: Vec<usize> = left.iter().map(Vec::len).collect();
        let part = LayerView { entries: &entries, lengths: &held, window: None, ..*view };
        let scores = self.of.score(&part)?.cast(DType::F32);
        let none = vec![0; held.len()];
        let chosen = view.ops.select(SelectInput {
            scores: &scores,
            lengths: &held,
            keep,
            sinks: view.protect.sinks,
            recent: &none,
            check: view.check,
        });
        let chosen = chosen.map_err(|error| Error::of_layer(error, view.layer))?;
        let (width, columns) = (chosen.width(), scores.dims()[2]);
        let indices = chosen.indices.try_into_vec_as::<i64>()?;
        for (head, left) in left.iter_mut().enumerate() {
            let own = &indices[head * width..][width - chosen.counts[head]..width];
            // Heads with fewer entries begin with padding.
            let first = columns - left.len();
            *left = own
                .iter()
                .filter_map(|&index| usize::try_from(index).ok()?.checked_sub(first))
                .filter_map(|index| left.get(index).copied())
                .collect();
        }
        Ok(())
    }
}
