//! The fate of the entries that are not kept.

pub mod ema_merge;
pub mod evict;
pub mod evict_then_merge;
pub mod gaussian_merge;
pub mod value_merge;

use super::margin::Margin;
use super::{LayerCache, ModelCache};

pub use ema_merge::Compare;
pub use evict::select;
pub use evict_then_merge::{Redundancy, Rotate};
pub use gaussian_merge::{Pivot, Sigma};

/// Ways to reduce a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reduce {
    /// The others are dropped.
    Evict,
    /// D2O: merged into the nearest kept entry, if it is near enough.
    EmaMerge {
        /// The weight of the newest similarities in the threshold.
        beta: f64,
        /// Whether all are merged, whatever the threshold.
        all: bool,
        /// The parts by which entries are compared.
        compare: Compare,
        /// Whether the kept one and the merged ones all weigh the same.
        average: bool,
    },
    /// CaM: their values are added to the next kept ones, by chance.
    ValueMerge {
        /// Number of next ones.
        window: usize,
        /// Seed of the chance.
        seed: u64,
        /// Whether those of a prompt are, too.
        prompts: bool,
    },
    /// KVMerger: similar neighbours become one.
    GaussianMerge {
        /// The share of the budget that is protected for the attention it received.
        protect: f64,
        /// The similarity above which neighbours are joined; `None` joins as many as the budget
        /// asks for.
        threshold: Option<f64>,
        /// The width of the kernel.
        sigma: Sigma,
        /// Whether a value is multiplied by the size of its set.
        scale_values: bool,
        /// The member that a set becomes.
        pivot: Pivot,
    },
    /// EMS: the irrelevant are evicted, the others merged into representatives, if one is near
    /// enough.
    EvictThenMerge {
        /// Members and entries, in budgets.
        gamma: f64,
        /// The redundancy that is not enough to be merged.
        tau: f64,
        /// Positions at which members' keys are encoded.
        rotate: Rotate,
        /// The similarity that makes two tokens redundant.
        redundancy: Redundancy,
        /// Whether members weigh what attention they received, rather than their scores.
        by_attention: bool,
    },
}

impl Reduce {
    /// EMS's, with the paper's choices but for these.
    pub fn ems(gamma: f64, tau: f64, rotate: Rotate) -> Self {
        let redundancy = Redundancy::Both;
        Self::EvictThenMerge { gamma, tau, rotate, redundancy, by_attention: false }
    }

    /// KVMerger's, with such a share of the budget protected.
    pub fn kvmerger(protect: f64) -> Self {
        let (sigma, pivot) = (Sigma::Fixed(5.0), Pivot::Score);
        Self::GaussianMerge { protect, threshold: None, sigma, scale_values: false, pivot }
    }

    /// D2O's.
    pub fn d2o() -> Self {
        Self::EmaMerge { beta: 0.7, all: false, compare: Compare::Keys, average: false }
    }
}

/// Reduces the heads of a layer to `keep` `[kv_heads]` entries.
pub fn reduce(cache: &mut ModelCache, layer: usize, keep: &[usize], margin: &mut Margin) {
    let method = cache.settings.method;
    let in_prompt = cache.in_prompt;
    let held: Vec<usize> = cache.layers[layer].heads.iter().map(Vec::len).collect();
    if held.iter().zip(keep).all(|(held, keep)| held <= keep) {
        return;
    }
    match method.reduce {
        Reduce::GaussianMerge { protect, threshold, sigma, scale_values, pivot } => {
            let protected = |keep: &usize| gaussian_merge::Protected {
                sinks: method.sinks,
                recent: method.recent_of(*keep),
                heavy: (protect * *keep as f64).floor() as usize,
            };
            let protected: Vec<_> = keep.iter().map(protected).collect();
            let merge = gaussian_merge::GaussianMerge { threshold, sigma, scale_values, pivot };
            let heads = &mut cache.layers[layer].heads;
            merge.apply(heads, keep.iter().sum(), &protected, layer, margin);
        }
        Reduce::EvictThenMerge { gamma, tau, redundancy, by_attention, .. } => {
            let scores = method.score.scores(cache, layer, margin);
            let LayerCache { heads, seen, .. } = &mut cache.layers[layer];
            for ((entries, scores), keep) in heads.iter_mut().zip(&scores).zip(keep) {
                let first_recent = seen.saturating_sub(method.recent_of(*keep));
                let merge = evict_then_merge::EvictThenMerge {
                    gamma,
                    tau,
                    redundancy,
                    by_attention,
                    first_recent,
                };
                *entries = merge.apply(entries, scores, *keep, margin);
            }
        }
        Reduce::Evict | Reduce::EmaMerge { .. } | Reduce::ValueMerge { .. } => {
            let kept = kept(cache, layer, keep, margin);
            let LayerCache { heads, thresholds, .. } = &mut cache.layers[layer];
            if let Reduce::EmaMerge { beta, all, compare, average } = method.reduce {
                let merge = ema_merge::EmaMerge { beta, all, average };
                merge.apply(heads, &kept, compare, thresholds, margin);
            }
            for (head, (entries, kept)) in heads.iter_mut().zip(&kept).enumerate() {
                if let Reduce::ValueMerge { window, seed, prompts } = method.reduce
                    && (prompts || !in_prompt)
                {
                    let draw = value_merge::Draw { seed, layer, head };
                    value_merge::merge(entries, kept, window, draw, margin);
                }
                *entries = kept.iter().map(|index| entries[*index].clone()).collect();
            }
        }
    }

    // What is left of a head that lost entries is held in the cache's type again, until it is
    // quantized anew, from the first on.
    let precision = cache.precision;
    let LayerCache { heads, quantized, .. } = &mut cache.layers[layer];
    for ((entries, held), quantized) in heads.iter_mut().zip(held).zip(quantized) {
        if entries.len() < held {
            for entry in entries.iter_mut().take(*quantized) {
                for number in entry.key.iter_mut().chain(&mut entry.value) {
                    *number = precision.round(*number);
                }
            }
            *quantized = 0;
        }
    }
}

/// The indices that each head of a layer keeps.
fn kept(cache: &ModelCache, layer: usize, keep: &[usize], margin: &mut Margin) -> Vec<Vec<usize>> {
    let method = &cache.settings.method;
    let scores = method.score.scores(cache, layer, margin);
    let mut all = Vec::new();
    for (scores, keep) in scores.iter().zip(keep) {
        let (kept, gap) = select(scores, *keep, method.sinks, method.recent_of(*keep));
        if !method.scores_are_whole_numbers() {
            margin.score(gap);
        }
        all.push(kept);
    }
    all
}
