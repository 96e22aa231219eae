//! ChunkKV: means over chunks of neighbours and over heads.

use super::{Score, Window};
use crate::reference::{Allocate, Margin, ModelCache};

/// Score of single entries, before chunks are formed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Inner {
    /// The length of keys.
    KeyNorm,
    /// The difference of keys from the others.
    KeyDifference,
    /// The attention of the last queries.
    Window(Window),
}

impl Inner {
    /// The same score as a `Score`.
    pub fn score(self) -> Score {
        match self {
            Self::KeyNorm => Score::KeyNorm,
            Self::KeyDifference => Score::KeyDifference,
            Self::Window(window) => Score::Window(window),
        }
    }
}

/// `[kv_heads][entries]`; protected entries do not count.
pub fn scores(
    cache: &ModelCache,
    layer: usize,
    length: usize,
    inner: Inner,
    margin: &mut Margin,
) -> Vec<Vec<f64>> {
    let scores = inner.score().scores(cache, layer, margin);
    let method = cache.settings.method;
    let recent = method.recent.of(cache.budget(layer), method.sinks);
    let means = |scores: &Vec<f64>| -> Vec<f64> {
        let end = scores.len().saturating_sub(recent);
        let mean = |start: usize| {
            let counted = start.max(method.sinks)..(start + length).min(end);
            let number = counted.len().max(1) as f64;
            scores.get(counted).unwrap_or_default().iter().sum::<f64>() / number
        };
        (0..scores.len()).step_by(length).map(mean).collect()
    };
    let mut of_heads: Vec<Vec<f64>> = scores.iter().map(means).collect();
    // Heads of different lengths have chunks of their own.
    if !matches!(method.allocate, Allocate::HeadAdaptive { .. }) {
        let mean = |chunk: usize| {
            of_heads.iter().map(|means| means[chunk]).sum::<f64>() / of_heads.len() as f64
        };
        let all: Vec<f64> = (0..of_heads[0].len()).map(mean).collect();
        of_heads = vec![all; scores.len()];
    }
    let spread = |(scores, means): (&Vec<f64>, &Vec<f64>)| {
        (0..scores.len()).map(|index| means[index / length]).collect()
    };
    scores.iter().zip(&of_heads).map(spread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Method;
    use crate::reference::score::by_hand::{assert_near, cache, keys};

    #[test]
    fn chunks_of_two_in_two_heads() {
        let mut cache = cache(Method::knorm(), 9);
        cache.layers[0].heads = vec![keys(&[1.0, 3.0, 5.0]), keys(&[2.0, 4.0, 1.0])];
        let found = scores(&cache, 0, 2, Inner::KeyNorm, &mut Margin::default());
        assert_near(&found[0], &[-2.5, -2.5, -3.0]);
        assert_near(&found[1], &[-2.5, -2.5, -3.0]);
    }
}
