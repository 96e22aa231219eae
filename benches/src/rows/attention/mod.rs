//! Attention, scores of entries, and the rotation of queries.

pub(super) mod compressed;
pub(super) mod dense_ragged;
pub(super) mod rotary;
pub(super) mod scores;

use briquette::ops::Visibility;
use briquette_ops::{AttentionInput, Scoring};
use burn::tensor::Tensor;

const HEAD_DIM: usize = 128;

fn plain() -> Scoring {
    Scoring::plain((HEAD_DIM as f64).powf(-0.5))
}

/// Attention over a prompt or a cache, without sums.
fn causal([queries, keys, values]: [Tensor<4>; 3]) -> AttentionInput {
    AttentionInput {
        queries,
        keys,
        values,
        visibility: Visibility::Causal,
        scoring: plain(),
        column_sums: false,
        column_squares: false,
    }
}
