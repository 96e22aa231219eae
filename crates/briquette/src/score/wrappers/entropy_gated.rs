//! ChunkKV (Liu et al., 2025, [arXiv 2502.00299](https://arxiv.org/abs/2502.00299)) gated by
//! entropy, as EntropyGatedChunkKVPress of kvpress.
//!
//! ```text
//! H = −Σ p ln p / ln 10      with p the scores of a chunk as shares of their sum
//! ```
//!
//! Protected: what the policy says. It stays out of the chunks.

use std::{ops::Range, sync::Arc};

use burn::tensor::{DType, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::{LayerView, Result, check, score::Scorer};

/// Rank of a token by chunks of neighbours, where important chunks with few important tokens
/// contribute only these: ChunkKV ([`ChunkKv`](super::ChunkKv); Liu et al., 2025, [arXiv
/// 2502.00299](https://arxiv.org/abs/2502.00299)) gated by entropy, as EntropyGatedChunkKVPress of
/// kvpress has it.
///
/// The mean over heads of another scorer's scores ranks chunks by their mean. A chunk at or above
/// the median, in which the entropy of the scores is below the median of all chunks, contributes
/// its `few` best tokens; other chunks contribute all of theirs. The rest comes last, by its own
/// scores. Scores are the ranks in this order, which is computed on the host.
///
/// Protected entries do not count. Where heads already hold different tokens, each has chunks of
/// its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntropyGated {
    /// Number of tokens of a chunk.
    pub length: usize,
    /// Number of tokens of an important chunk with low entropy that are kept first.
    pub few: usize,
    /// Wrapped scorer.
    pub of: Arc<dyn Scorer>,
}

impl EntropyGated {
    /// Wraps `scorer` with chunks of 10 tokens, 4 of them where the entropy is low, as in kvpress.
    pub fn of(scorer: impl Scorer) -> Self {
        Self { length: 10, few: 4, of: Arc::new(scorer) }
    }
}

impl Scorer for EntropyGated {
    fn name(&self) -> &str {
        "entropy-gated"
    }

    fn summary(&self) -> String {
        let Self { length, few, of } = self;
        format!("{} {few} of {length}, {}", self.name(), of.summary())
    }

    fn inner(&self) -> Option<&dyn Scorer> {
        Some(self.of.as_ref())
    }

    fn check(&self) -> Result<()> {
        check::window("score.length", self.length)?;
        if !(1..self.length).contains(&self.few) {
            let must_be = format!("at least 1 and below the {} tokens of a chunk", self.length);
            return check::refuse("score.few", self.few, must_be);
        }
        self.of.check()
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let scores = self.of.score(view)?.cast(DType::F32);
        let (dims, device) = (scores.dims(), scores.device());
        let [_, heads, columns] = dims;
        let scores = scores.try_into_vec_as::<f32>()?;
        let mut places = vec![0.0_f32; scores.len()];
        // Heads of a row that hold the same tokens are one.
        let together = if view.heads_differ { 1 } else { heads };
        for first in (0..view.lengths.len()).step_by(together) {
            let held = view.lengths[first];
            let recent = view.protect.recent_tokens(view.budget[first / heads]);
            let own: Vec<&[f32]> = scores[first * columns..]
                .chunks(columns)
                .take(together)
                .map(|scores| &scores[columns - held..])
                .collect();
            let mean = |token: usize| {
                own.iter().map(|head| f64::from(head[token])).sum::<f64>() / together as f64
            };
            let means: Vec<f64> = (0..held).map(mean).collect();
            let counted = view.protect.sinks.min(held)..held.saturating_sub(recent);
            let order = order(&means, counted, self.length, self.few);
            for head in first..first + together {
                let tokens = &mut places[(head + 1) * columns - held..][..held];
                for (place, &token) in order.iter().rev().enumerate() {
                    tokens[token] = place as f32;
                }
            }
        }
        Ok(Tensor::from_data(TensorData::new(places, dims), (&device, DType::F32)))
    }
}

struct Chunk {
    tokens: Range<usize>,
    mean: f64,
    entropy: f64,
}

/// Order of the tokens `counted`, the most important first; of equal ones the older.
fn order(scores: &[f64], counted: Range<usize>, length: usize, few: usize) -> Vec<usize> {
    let chunk = |start: usize| {
        let tokens = start.max(counted.start)..(start + length).min(counted.end);
        let own = scores.get(tokens.clone()).filter(|own| !own.is_empty())?;
        let mean = own.iter().sum::<f64>() / own.len() as f64;
        Some(Chunk { tokens, mean, entropy: entropy(own) })
    };
    let mut chunks: Vec<Chunk> = (0..scores.len()).step_by(length).filter_map(chunk).collect();
    let mean = lower_median(chunks.iter().map(|chunk| chunk.mean));
    let entropy = lower_median(chunks.iter().map(|chunk| chunk.entropy));
    chunks.sort_by(|a, b| b.mean.total_cmp(&a.mean));
    let falling = |tokens: &mut [usize]| tokens.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let (mut order, mut rest) = (Vec::new(), Vec::new());
    for chunk in chunks {
        let mut tokens: Vec<usize> = chunk.tokens.collect();
        falling(&mut tokens);
        if chunk.mean >= mean && chunk.entropy < entropy {
            rest.extend(tokens.drain(few.min(tokens.len())..));
        }
        order.extend(tokens);
    }
    rest.sort_unstable();
    falling(&mut rest);
    order.extend(rest);
    order
}

/// Entropy of scores as shares of their sum, divided by that of as many equal scores. If some are
/// below 0, all are first shifted up to it. 0 for a single score, and for a sum of 0.
fn entropy(scores: &[f64]) -> f64 {
    let lowest = scores.iter().copied().fold(0.0, f64::min);
    let sum: f64 = scores.iter().map(|score| score - lowest).sum();
    if sum == 0.0 || scores.len() == 1 {
        return 0.0;
    }
    let shares = scores.iter().map(|score| (score - lowest) / sum).filter(|&share| share > 0.0);
    let entropy = -shares.map(|share| share * share.ln()).sum::<f64>();
    (entropy / (scores.len() as f64).ln()).clamp(0.0, 1.0)
}

fn lower_median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = numbers.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_gives_its_best_token_and_the_others_wait() {
        // Chunks of 3: means 3, 2, 1 and 0.5; entropies 0, 0.98, 1 and 1.
        let scores = [9.0, 0.0, 0.0, 2.0, 2.5, 1.5, 1.0, 1.0, 1.0, 0.5, 0.5];
        assert_eq!(order(&scores, 0..11, 3, 1), [0, 4, 3, 5, 6, 7, 8, 9, 10, 1, 2]);
        // Without the first and the last three.
        assert_eq!(order(&scores, 1..8, 3, 1), [4, 3, 5, 6, 7, 1, 2]);
        assert!(order(&scores, 5..5, 3, 1).is_empty());
    }

    #[test]
    fn entropy_is_a_share_of_the_most() {
        assert!((entropy(&[2.0, 2.0, 2.0]) - 1.0).abs() < 1e-12);
        assert_eq!(entropy(&[0.0, 3.0, 0.0]), 0.0);
        assert_eq!((entropy(&[7.0]), entropy(&[-1.0, -1.0])), (0.0, 0.0));
        assert!((entropy(&[-1.0, 0.0, 0.0]) - 2_f64.ln() / 3_f64.ln()).abs() < 1e-12);
        assert_eq!(lower_median([4.0, 1.0, 3.0, 2.0].into_iter()), 2.0);
    }
}
