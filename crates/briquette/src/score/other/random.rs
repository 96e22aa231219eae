//! The baseline without a paper: any score should beat it.
//!
//! Protected: nothing.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result,
    score::{Scorer, support::draw},
};

/// Random number per token, the baseline that every score should beat. It is a function of seed,
/// layer, head and position, so every backend, batch and run draws the same, and a token keeps its
/// number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Random {
    /// Seed of the draws.
    pub seed: u64,
}

impl Scorer for Random {
    fn name(&self) -> &str {
        "random"
    }

    fn summary(&self) -> String {
        format!("{}, seed {}", self.name(), self.seed)
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        Ok(draw(self.seed, view.layer, view.positions().clone()))
    }
}
