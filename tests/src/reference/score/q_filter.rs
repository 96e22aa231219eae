//! Q-Filter: how far a key points along what the queries of its head share.

use crate::reference::ModelCache;

/// `[kv_heads][entries]`.
pub fn scores(cache: &ModelCache, layer: usize) -> Vec<Vec<f64>> {
    let directions = &cache.settings.profile.directions[layer];
    let mut all = Vec::new();
    for (entries, direction) in cache.layers[layer].heads.iter().zip(directions) {
        let keys = cache.keys(entries);
        let along = |key: &Vec<f64>| key.iter().zip(direction).map(|(k, u)| k * u).sum();
        all.push(keys.iter().map(along).collect());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, cache, keys};
    use crate::reference::{Method, Profile};

    #[test]
    fn along_and_against() {
        let mut cache = cache(Method::full(), 9);
        cache.settings.profile =
            Profile { directions: vec![vec![vec![-0.5]]], ..Profile::default() };
        cache.layers[0].heads[0] = keys(&[3.0, -2.0]);
        assert_near(&scores(&cache, 0)[0], &[-1.5, 1.0]);
    }
}
