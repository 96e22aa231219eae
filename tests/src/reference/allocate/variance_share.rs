//! D2O: how concentrated the attention of a layer is on few tokens.

use super::apportion;
use crate::reference::ModelCache;
use crate::reference::margin::{Margin, relative};

/// A map from the concentration F of a layer to its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// `exp(−F)`
    Softmax,
    /// `1 / (F + 1e-6)`
    Inverse,
    /// `exp(−rank)`, the rank of F among the layers, the smallest first.
    ExponentialDecay,
}

/// The population variance over entries of the attention they received, the mean over query heads.
pub fn concentration(cache: &ModelCache, layer: usize, normalize: bool) -> f64 {
    let mut variances = Vec::new();
    for entries in &cache.layers[layer].heads {
        for query_head in 0..entries[0].received.len() {
            let sums: Vec<f64> =
                entries.iter().map(|entry| entry.received[query_head].iter().sum()).collect();
            variances.push(variance(&sums));
        }
    }
    let least = variances.iter().copied().fold(f64::INFINITY, f64::min);
    let most = variances.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let scaled = |variance: &f64| match (normalize, most > least) {
        (false, _) => *variance,
        (true, true) => (variance - least) / (most - least),
        (true, false) => 0.0,
    };
    variances.iter().map(scaled).sum::<f64>() / variances.len() as f64
}

fn variance(numbers: &[f64]) -> f64 {
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / count
}

/// Entries that each layer keeps, `[layers]`, as seen at `layer`.
pub fn keep(cache: &ModelCache, layer: usize, share: Share, margin: &mut Margin) -> Vec<usize> {
    let layers = cache.settings.layers;
    let (budget, seen) = (cache.budget(layer), cache.layers[layer].measured_at);
    let weight = |index: usize| {
        let measured = cache.layers[index].measured.expect("a prompt came first");
        match share {
            Share::Softmax => (-measured).exp(),
            Share::Inverse => 1.0 / (measured + 1e-6),
            Share::ExponentialDecay => {
                let mut order: Vec<usize> = (0..layers).collect();
                let of = |index: usize| cache.layers[index].measured.expect("a prompt came first");
                order.sort_by(|a, b| of(*a).total_cmp(&of(*b)).then(a.cmp(b)));
                let rank = order.iter().position(|other| *other == index);
                (-(rank.expect("a layer of the cache") as f64)).exp()
            }
        }
    };
    let weights: Vec<f64> = (0..layers).map(weight).collect();
    let hundredth = (0.01 * seen as f64).ceil() as usize;
    let least = (cache.settings.method.sinks + 1).max(hundredth).min(budget);
    let most = seen.max(budget);
    let (keep, gap) =
        apportion(layers * budget, &weights, &vec![least; layers], &vec![most; layers]);
    match share {
        Share::Softmax | Share::Inverse => margin.share(gap),
        // What decides is which of two layers' measures is the smaller.
        Share::ExponentialDecay => {
            let mut measures: Vec<f64> =
                cache.layers.iter().filter_map(|layer| layer.measured).collect();
            measures.sort_by(f64::total_cmp);
            // Layers of a single token have none.
            let differ = measures.windows(2).filter(|two| two[0] != two[1]);
            differ.for_each(|two| margin.score(relative(two[0], two[1])));
        }
    }
    keep
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, cache, entry};
    use crate::reference::{Method, Precision};

    #[test]
    fn variances_of_three_heads() {
        let mut cache = cache(Method::d2o(), 9);
        // Sums 1 3, 2 2, 4 8: variances 1, 0, 4.
        for (position, sums) in [[1.0, 2.0, 4.0], [3.0, 2.0, 8.0]].into_iter().enumerate() {
            let mut entry = entry(position, &[0.0], &[0.0], 0.0);
            entry.received = sums.iter().map(|sum| vec![sum / 2.0, sum / 2.0]).collect();
            cache.layers[0].heads[0].push(entry);
        }
        assert_near(&[concentration(&cache, 0, false)], &[5.0 / 3.0]);
        // 1/4, 0, 1.
        assert_near(&[concentration(&cache, 0, true)], &[5.0 / 12.0]);
    }

    #[test]
    fn eighteen_for_three_layers() {
        let mut settings = cache(Method::d2o(), 6).settings;
        settings.layers = 3;
        settings.method.sinks = 1;
        let mut cache = ModelCache::new(settings, Precision::F32);
        for (layer, measured) in [0.0, 1.0, 1.0_f64].into_iter().enumerate() {
            cache.layers[layer].measured = Some(measured);
            (cache.layers[layer].seen, cache.layers[layer].measured_at) = (41, 40);
        }
        let keep = |share| super::keep(&cache, 0, share, &mut Margin::default());
        // 1 : 0.368 : 0.368 of 18 is 10.37, 3.81, 3.81.
        assert_eq!(keep(Share::Softmax), [10, 4, 4]);
        // A million to one: the others keep a sink and one more.
        assert_eq!(keep(Share::Inverse), [14, 2, 2]);
        // 1 : 0.368 : 0.135 is 11.97, 4.40, 1.62; the last keeps two: 11.70, 4.30. Of equals the
        // first is the smaller.
        assert_eq!(keep(Share::ExponentialDecay), [12, 4, 2]);
        cache.layers[0].measured = Some(1.5);
        let keep = super::keep(&cache, 0, Share::ExponentialDecay, &mut Margin::default());
        assert_eq!(keep, [2, 12, 4]);
    }
}
