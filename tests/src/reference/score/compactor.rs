//! Compactor: leverage and the attention of a token's own chunk.

use super::{Pool, leverage, non_causal};
use crate::reference::ModelCache;

/// Numbers behind the first `sinks` of each head with mean 0 and deviation 1 over all heads; the
/// others zero.
fn normalized(scores: &[Vec<f64>], sinks: usize) -> Vec<Vec<f64>> {
    let all: Vec<f64> =
        scores.iter().flat_map(|scores| scores.iter().skip(sinks).copied()).collect();
    let number = all.len() as f64;
    let mean = all.iter().sum::<f64>() / number;
    let squares: f64 = all.iter().map(|x| (x - mean).powi(2)).sum();
    let deviation = (squares / (number - 1.0).max(1.0)).sqrt().max(1e-6);
    let place =
        |(index, x): (usize, &f64)| if index < sinks { 0.0 } else { (x - mean) / deviation };
    scores.iter().map(|scores| scores.iter().enumerate().map(place).collect()).collect()
}

/// `[kv_heads][entries]`
pub fn scores(
    cache: &ModelCache,
    layer: usize,
    ridge: f64,
    pool: Option<Pool>,
    blend: Option<f64>,
) -> Vec<Vec<f64>> {
    let heads = &cache.layers[layer].heads;
    let sinks = cache.settings.method.sinks;
    let held = heads.iter().map(Vec::len).max().unwrap_or(0);
    let goes = 1.0 - (cache.budget(layer) as f64 / held as f64).min(1.0);
    let blend = blend.unwrap_or(goes);
    let of_space = normalized(&leverage::scores(heads, sinks, ridge), sinks);
    let of_chunk = normalized(&non_causal::scores(heads, pool), sinks);
    let sum =
        |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).map(|(a, b)| blend * a + b).collect();
    of_space.iter().zip(&of_chunk).map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::assert_near;

    #[test]
    fn mean_and_deviation_of_two_heads() {
        // 1, 3, 5 have the mean 3 and the deviation 2.
        let found = normalized(&[vec![99.0, 1.0, 5.0], vec![99.0, 3.0]], 1);
        assert_near(&found[0], &[0.0, -1.0, 1.0]);
        assert_near(&found[1], &[0.0, 0.0]);
    }
}
