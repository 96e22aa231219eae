//! CriticalKV: scores, and how far values reach behind the output projection.

use super::Inner;
use crate::reference::margin::Margin;
use crate::reference::reduce::select;
use crate::reference::reduce::value_merge::Draw;
use crate::reference::{Head, ModelCache};

/// The output projection of a query head, `[head_dim][5]`: of a model that was never trained,
/// numbers between −½ and ½.
pub fn projection(layer: usize, query_head: usize, head_dim: usize) -> Head {
    const HIDDEN: usize = 5;
    let draw = Draw { seed: 77, layer, head: query_head };
    let row =
        |channel| (0..HIDDEN).map(|output| draw.at(channel * HIDDEN + output) - 0.5).collect();
    (0..head_dim).map(row).collect()
}

/// `[kv_heads][entries]`; infinite for the `first` share of the budget.
pub fn scores(
    cache: &ModelCache,
    layer: usize,
    inner: Inner,
    first: f64,
    epsilon: f64,
    margin: &mut Margin,
) -> Vec<Vec<f64>> {
    let plain = inner.score().scores(cache, layer, margin);
    let (method, budget) = (cache.settings.method, cache.budget(layer));
    let group = cache.settings.query_heads / cache.settings.kv_heads;
    let mut all = Vec::new();
    for (head, (scores, entries)) in plain.iter().zip(&cache.layers[layer].heads).enumerate() {
        let keep = (budget as f64 * first).floor() as usize;
        let (chosen, gap) =
            select(scores, keep, method.sinks, method.recent.of(budget, method.sinks));
        margin.score(gap);
        let score = |index: usize| {
            if chosen.contains(&index) {
                return f64::INFINITY;
            }
            let mut reach = 0.0;
            for query_head in head * group..(head + 1) * group {
                let rows = projection(layer, query_head, cache.settings.head_dim);
                for output in 0..rows[0].len() {
                    let value = entries[index].value.iter().zip(&rows);
                    let sum: f64 = value.map(|(x, row)| x * row[output]).sum();
                    reach += sum.abs() / group as f64;
                }
            }
            (scores[index] + epsilon) * reach
        };
        all.push((0..entries.len()).map(score).collect());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Method;
    use crate::reference::score::by_hand::{assert_near, cache, entry};

    #[test]
    fn the_shortest_key_first_and_then_how_far_values_reach() {
        let mut cache = cache(Method::knorm(), 2);
        let numbers = [(3.0, 1.0), (1.0, 1.0), (2.0, -2.0)];
        let entries = numbers.iter().enumerate().map(|(i, (k, v))| entry(i, &[*k], &[*v], 0.0));
        cache.layers[0].heads = vec![entries.collect()];
        let found = scores(&cache, 0, Inner::KeyNorm, 0.5, 0.25, &mut Margin::default());
        let reach: f64 = projection(0, 0, 1)[0].iter().map(|x| x.abs()).sum();
        assert_near(&found[0], &[-2.75 * reach, f64::INFINITY, -1.75 * 2.0 * reach]);
    }
}
