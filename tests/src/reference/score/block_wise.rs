//! Block by block: what is left competes with the tokens that come next.

use super::Inner;
use crate::reference::margin::Margin;
use crate::reference::reduce::select;
use crate::reference::{Entry, ModelCache};

/// `[kv_heads][entries]`, 1 for what is left in the end.
pub fn scores(
    cache: &ModelCache,
    layer: usize,
    length: usize,
    inner: Inner,
    margin: &mut Margin,
) -> Vec<Vec<f64>> {
    let budget = cache.budget(layer);
    let heads = &cache.layers[layer].heads;
    let mut all = Vec::new();
    for (head, entries) in heads.iter().enumerate() {
        let mut left: Vec<Entry> = entries.iter().take(budget).cloned().collect();
        let rest: Vec<Entry> = entries.iter().skip(budget).cloned().collect();
        for block in rest.chunks(length) {
            left.extend_from_slice(block);
            let mut part = cache.clone();
            part.layers[layer].heads[head] = left.clone();
            let scores = inner.score().scores(&part, layer, margin);
            let (chosen, gap) = select(&scores[head], budget, cache.settings.method.sinks, 0);
            margin.score(gap);
            left = (0..left.len())
                .filter(|index| chosen.contains(index))
                .map(|index| left[index].clone())
                .collect();
        }
        let stays = |entry: &Entry| left.iter().any(|left| left.position == entry.position);
        all.push(entries.iter().map(|entry| f64::from(u8::from(stays(entry)))).collect());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Method;
    use crate::reference::score::by_hand::{assert_near, cache, keys};

    #[test]
    fn three_blocks_of_two() {
        // Of 3 and 1 against 2 and 4 stay 1 and 2; against 1.5 stay 1 and 1.5.
        let mut cache = cache(Method::knorm(), 2);
        cache.layers[0].heads[0] = keys(&[3.0, 1.0, 2.0, 4.0, 1.5]);
        let found = scores(&cache, 0, 2, Inner::KeyNorm, &mut Margin::default());
        assert_near(&found[0], &[0.0, 1.0, 0.0, 0.0, 1.0]);
    }
}
