//! SimLayerKV: a layer that looks at the first and the last tokens anyway needs no others.

use crate::reference::ModelCache;
use crate::reference::margin::{Margin, relative};
use crate::reference::score::window::window_weights;

/// Entries that every head of a layer keeps. What heads hold is the same.
pub fn keep(
    cache: &ModelCache,
    layer: usize,
    budget: usize,
    threshold: f64,
    window: usize,
    margin: &mut Margin,
) -> usize {
    let held = cache.layers[layer].heads[0].len();
    let sinks = cache.settings.method.sinks;
    let weights = window_weights(cache, layer, window);
    let queries = weights[0].len();
    let last = budget - sinks + window;
    if held <= sinks + last + queries {
        return held;
    }
    let before = held - queries;
    let mut share = 0.0;
    for row in weights.iter().flatten() {
        let first: f64 = row[..sinks].iter().sum();
        let recent: f64 = row[before - last..before].iter().sum();
        share += (first + recent) / (weights.len() * queries) as f64;
    }
    margin.score(relative(share, threshold));
    if share > threshold { budget } else { held }
}
