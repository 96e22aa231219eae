//! CurDKV: Sengupta et al., 2025, *Value-Guided KV Compression for LLMs via Approximated CUR
//! Decomposition* ([arXiv 2509.15038](https://arxiv.org/abs/2509.15038)).
//!
//! ```text
//! s[j] = ‖k[j]‖² / Σ ‖k‖² over its group · ‖v[j]‖² / Σ ‖v‖² over its group      of 16 entries
//! ```
//!
//! Protected: the first 4 tokens.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    ops::{iota, norm},
    score::{
        Scorer,
        support::{FromFirst, per_head},
    },
};

/// Squared lengths of a token's key and value, each as a share of those of its neighbours,
/// multiplied: approximate leverage scores of a CUR decomposition (CurDKV; Sengupta et al., 2025,
/// [arXiv 2509.15038](https://arxiv.org/abs/2509.15038)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurDkv {
    /// Number of neighbours: the entries of a head are divided into groups of this size, from the
    /// first on.
    pub window: usize,
}

impl Scorer for CurDkv {
    fn name(&self) -> &str {
        "curdkv"
    }

    fn summary(&self) -> String {
        format!("{} {}", self.name(), self.window)
    }

    fn check(&self) -> Result<()> {
        check::window("score.window", self.window)
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let entries = FromFirst::of(view);
        let [batch, heads, columns] = view.positions().dims();
        let width = columns.next_multiple_of(self.window);
        let dims = [batch, heads, width];
        let held = per_head(dims, view.lengths.iter().copied(), view).expand(dims);
        let there = iota(dims, &held.device()).lower(held).unsqueeze_dim::<4>(3);
        let share = |x: Tensor<4>| {
            let squares = norm(x).square();
            let squares = entries.rows(squares, 0, width).mask_fill(there.clone().bool_not(), 0.0);
            let groups = squares.reshape([batch, heads, width / self.window, self.window]);
            let sums = groups.clone().sum_dim(3).clamp_min(f32::MIN_POSITIVE);
            (groups / sums).reshape(dims)
        };
        let scores = share(view.keys()?) * share(view.values()?);
        Ok(entries.at_columns(scores, 0))
    }
}
