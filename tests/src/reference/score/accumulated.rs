//! H2O: the attention a token received since it was written.

use crate::reference::Entry;

/// `[kv_heads][entries]`
pub fn scores(heads: &[Vec<Entry>], mean: bool) -> Vec<Vec<f64>> {
    let score = |entry: &Entry| {
        // Every query head of a group has the same queries.
        let queries = entry.received[0].len() as f64;
        if mean { entry.accumulated() / queries } else { entry.accumulated() }
    };
    heads.iter().map(|entries| entries.iter().map(score).collect()).collect()
}

#[cfg(test)]
mod tests {
    use crate::reference::score::by_hand::{assert_near, cache, prompt};
    use crate::reference::{Method, Score};

    #[test]
    fn sums_and_means_of_three_tokens() {
        // Rows of weights: 1 · 1/3 2/3 · 1/4 2/4 1/4.
        let mut cache = cache(Method::full(), 9);
        prompt(&mut cache, &[1.0, 2.0, 1.0]);
        let sums = Score::Accumulated { mean: false }.scores(&cache, 0, &mut cache.margin.clone());
        let (first, second) = (1.0 + 1.0 / 3.0 + 0.25, 2.0 / 3.0 + 0.5);
        assert_near(&sums[0], &[first, second, 0.25]);
        let means = Score::Accumulated { mean: true }.scores(&cache, 0, &mut cache.margin.clone());
        assert_near(&means[0], &[first / 3.0, second / 2.0, 0.25]);
    }
}
