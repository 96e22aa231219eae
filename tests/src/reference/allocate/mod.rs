//! Numbers of entries that each layer and head may keep.

pub mod error_aware;
pub mod head_adaptive;
pub mod head_profile;
pub mod lazy_layers;
pub mod preference;
pub mod pyramid;
pub mod streaming_heads;
pub mod variance_share;

use super::margin::{Margin, absolute, border, relative};
use super::profile::HeadScore;
use super::{ModelCache, Window};

pub use error_aware::ErrorAware;
pub use variance_share::Share;

/// Ways to share out the budget over layers and heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Allocate {
    /// Not at all: all is kept.
    All,
    /// The same for all.
    Uniform,
    /// PyramidKV: fewer the deeper the layer.
    Pyramid {
        /// Steepness of the decrease.
        beta: f64,
    },
    /// CAKE: more for layers whose attention is spread out and moves.
    Preference {
        /// Queries whose attention is looked at.
        window: usize,
        /// The inverse power of the spread.
        tau1: f64,
        /// The inverse power of the movement.
        tau2: f64,
    },
    /// D2O: less for layers whose attention is concentrated.
    VarianceShare {
        /// The map from concentration to weight.
        share: Share,
        /// Whether heads are scaled to between 0 and 1 first.
        normalize: bool,
    },
    /// AdaKV: to the heads of a layer that hold its highest scores.
    HeadAdaptive {
        /// The share of the budget that every head is sure of.
        floor: f64,
        /// Scores to go by, if they differ from those by which entries are selected.
        by: Option<Window>,
        /// Budgets of layers, if they differ from each other.
        layers: Option<ErrorAware>,
    },
    /// HeadKV: more for heads that a profile scores higher.
    HeadProfile {
        /// One part in so many is shared out by score.
        beta: f64,
        /// Scores of the heads.
        scores: HeadScore,
    },
    /// CompressKV: more for layers that a profile says suffer.
    ErrorAware(ErrorAware),
    /// SimLayerKV: the budget for layers that look at the first and last tokens anyway, everything
    /// for the others.
    LazyLayers {
        /// Share of the attention that makes a layer lazy.
        threshold: f64,
        /// Number of queries whose attention counts.
        window: usize,
    },
    /// DuoAttention: everything for heads that look far back, as many as the budget allows.
    StreamingHeads {
        /// Tokens that the other heads keep.
        tokens: usize,
    },
    /// A share of the tokens seen for each of two layers.
    LayerRatios([f64; 2]),
    /// DMS's rule: scores of at least so much.
    AboveThreshold(f64),
    /// KVCompose: the best tokens of a layer's heads, taken together. Only a second pass knows
    /// them.
    Composite,
    /// KVzip: the highest of all scores. Only a second pass knows them.
    OneThreshold,
}

impl Allocate {
    /// Whether a layer's share can only be known once all layers have been seen.
    pub fn looks_at_all_layers(&self) -> bool {
        matches!(self, Self::Preference { .. } | Self::VarianceShare { .. })
    }
}

/// The allocator's measurement of a layer whose prompt has just been attended to, if it makes one.
pub fn measure(cache: &ModelCache, layer: usize) -> Option<f64> {
    match cache.settings.method.allocate {
        Allocate::Preference { window, tau1, tau2 } => {
            Some(preference::preference(cache, layer, window, tau1, tau2))
        }
        Allocate::VarianceShare { normalize, .. } => {
            Some(variance_share::concentration(cache, layer, normalize))
        }
        _ => None,
    }
}

/// Entries that each kv head of a layer may keep.
pub fn keep(cache: &ModelCache, layer: usize, margin: &mut Margin) -> Vec<usize> {
    let method = &cache.settings.method;
    let (layers, heads) = (cache.settings.layers, cache.settings.kv_heads);
    let budget = cache.budget(layer);
    let protected = method.protected(budget);
    // Beyond what is protected: the budget of a layer, and all that there can be in it.
    let body = budget.saturating_sub(protected);
    let room = cache.layers[layer].seen.saturating_sub(protected);
    let all_heads = |keep: usize| vec![keep; heads];
    match method.allocate {
        Allocate::All => all_heads(usize::MAX),
        Allocate::Uniform => all_heads(budget),
        Allocate::Pyramid { beta } => {
            all_heads(protected + pyramid::bodies(layers, body, room, beta)[layer])
        }
        Allocate::Preference { .. } => {
            all_heads(protected + preference::bodies(cache, body, room, margin)[layer])
        }
        Allocate::VarianceShare { share, .. } => {
            all_heads(variance_share::keep(cache, layer, share, margin)[layer])
        }
        Allocate::HeadAdaptive { floor, by, layers } => {
            let budget = layers.map_or(budget, |layers| of_layer(cache, layer, layers));
            let protected = method.protected(budget);
            let body = budget.saturating_sub(protected);
            let sure = ((floor * budget as f64).floor() as usize).saturating_sub(protected);
            let sure = if protected == 0 { sure.max(1) } else { sure };
            let scores = match by {
                None => method.score.scores(cache, layer, margin),
                Some(window) => window.scores(cache, layer),
            };
            let bodies = head_adaptive::bodies(
                &scores,
                method.sinks,
                method.recent_of(budget),
                sure,
                body * heads,
                margin,
            );
            bodies.iter().map(|body| protected + body).collect()
        }
        Allocate::HeadProfile { beta, scores } => {
            let scores = cache.settings.profile.heads(scores);
            let bodies = head_profile::bodies(scores, heads, body, room, beta);
            bodies[layer].iter().map(|body| protected + body).collect()
        }
        Allocate::LazyLayers { threshold, window } => {
            all_heads(lazy_layers::keep(cache, layer, budget, threshold, window, margin))
        }
        Allocate::StreamingHeads { tokens } => {
            let seen = cache.layers[layer].seen;
            let held: Vec<usize> = cache.layers[layer].heads.iter().map(Vec::len).collect();
            let reach = &cache.settings.profile.reach;
            streaming_heads::keep(reach, layer, tokens, budget, seen, &held)
        }
        Allocate::LayerRatios(ratios) => {
            let share = ratios[layer] * cache.layers[layer].seen as f64;
            all_heads((share.floor() as usize).max(method.least_budget()))
        }
        Allocate::AboveThreshold(threshold) => {
            let recent = method.recent_of(budget);
            let of_head = |scores: &Vec<f64>| {
                let end = scores.len().saturating_sub(recent).max(method.sinks.min(scores.len()));
                let body = &scores[method.sinks.min(scores.len())..end];
                for score in body {
                    margin.score(relative(*score, threshold));
                }
                let above = body.iter().filter(|score| **score >= threshold).count();
                (above + scores.len() - body.len()).min(budget).max(1)
            };
            method.score.scores(cache, layer, &mut Margin::default()).iter().map(of_head).collect()
        }
        Allocate::OneThreshold | Allocate::Composite => panic!("there is no second pass"),
        Allocate::ErrorAware(layers) => all_heads(of_layer(cache, layer, layers)),
    }
}

/// Entries that a layer keeps by the errors of the profile.
fn of_layer(cache: &ModelCache, layer: usize, ErrorAware { least, most }: ErrorAware) -> usize {
    let errors = &cache.settings.profile.layer_errors;
    let (budget, seen) = (cache.budget(layer), cache.layers[layer].seen);
    error_aware::keep(errors, budget, seen, least, most)[layer]
}

/// Shares `total` out by `weights`, nobody below its `least` or above its `most`. Returns the
/// shares and how far they were from being rounded another way.
pub fn apportion(
    total: usize,
    weights: &[f64],
    least: &[usize],
    most: &[usize],
) -> (Vec<usize>, f64) {
    if total <= least.iter().sum() {
        return (least.to_vec(), f64::INFINITY);
    }
    if total >= most.iter().sum() {
        return (most.to_vec(), f64::INFINITY);
    }
    let largest = weights.iter().copied().fold(0.0, f64::max);
    let weights: Vec<f64> = match largest > 0.0 {
        true => weights.iter().map(|weight| weight.max(1e-12 * largest)).collect(),
        false => vec![1.0; weights.len()],
    };
    let at = |lambda: f64| -> Vec<f64> {
        let clamp = |i: usize| (lambda * weights[i]).clamp(least[i] as f64, most[i] as f64);
        (0..weights.len()).map(clamp).collect()
    };
    let sum = |lambda: f64| at(lambda).iter().sum::<f64>();

    // The sum grows with lambda, up to more than the total.
    let (mut low, mut high) = (0.0, 1.0);
    while sum(high) < total as f64 {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if sum(middle) < total as f64 { low = middle } else { high = middle }
    }
    let exact = at(high);

    // A little more, so that what is whole but for rounding counts as whole.
    let exact: Vec<f64> = exact.iter().map(|x| x + 1e-9).collect();
    let mut shares: Vec<usize> = exact.iter().map(|x| x.floor() as usize).collect();
    let fractions: Vec<f64> = exact.iter().map(|x| x - x.floor()).collect();
    let rest = total - shares.iter().sum::<usize>();
    let mut order: Vec<usize> = (0..exact.len()).filter(|i| shares[*i] < most[*i]).collect();
    let steps = |i: usize| (fractions[i] * f64::powi(2.0, 20)).floor();
    order.sort_by(|a, b| steps(*b).total_cmp(&steps(*a)).then(a.cmp(b)));
    let falling: Vec<f64> = order.iter().map(|i| fractions[*i]).collect();
    let margin = border(&falling[..rest], &falling[rest..], absolute);
    for i in &order[..rest] {
        shares[*i] += 1;
    }
    (shares, margin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_goes_to_the_largest_fractions() {
        // 10 by 1 : 2 : 4 is 1.43, 2.86, 5.71: two are left of 1 + 2 + 5.
        let (shares, margin) = apportion(10, &[1.0, 2.0, 4.0], &[0; 3], &[9; 3]);
        assert_eq!(shares, [1, 3, 6]);
        assert!((margin - 2.0 / 7.0).abs() < 1e-9);
        // Equals: the first.
        assert_eq!(apportion(5, &[3.0, 3.0, 3.0], &[0; 3], &[9; 3]).0, [2, 2, 1]);
        assert_eq!(apportion(6, &[3.0, 3.0, 3.0], &[0; 3], &[9; 3]).0, [2, 2, 2]);
    }

    #[test]
    fn bounds_hold_and_the_others_share() {
        // 6 for the first would be too many: of 4 left, 1 : 1.
        assert_eq!(apportion(8, &[6.0, 1.0, 1.0], &[0; 3], &[4; 3]).0, [4, 2, 2]);
        // 0.8 for the last would be too few: 5 left, 4 : 3 is 2.86, 2.14.
        assert_eq!(apportion(8, &[4.0, 3.0, 0.8], &[0, 0, 3], &[9; 3]).0, [3, 2, 3]);
        assert_eq!(apportion(3, &[1.0, 1.0], &[2, 2], &[9, 9]).0, [2, 2]);
        assert_eq!(apportion(19, &[1.0, 1.0], &[2, 2], &[9, 9]).0, [9, 9]);
    }

    #[test]
    fn zero_weights_get_what_others_cannot_take() {
        assert_eq!(apportion(6, &[1.0, 0.0, 0.0], &[0; 3], &[2; 3]).0, [2, 2, 2]);
        assert_eq!(apportion(5, &[1.0, 0.0, 0.0], &[0; 3], &[3; 3]).0, [3, 1, 1]);
        assert_eq!(apportion(4, &[0.0, 0.0], &[0; 2], &[9; 2]).0, [2, 2]);
    }
}
