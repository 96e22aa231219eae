//! Chunks of neighbours, of which important ones that hang on few tokens give only these.

use super::Inner;
use crate::reference::margin::{Margin, relative};
use crate::reference::{Allocate, ModelCache};

/// `[kv_heads][entries]`, the higher the sooner a token is kept; what is protected does not count.
pub fn scores(
    cache: &ModelCache,
    layer: usize,
    (length, few): (usize, usize),
    inner: Inner,
    margin: &mut Margin,
) -> Vec<Vec<f64>> {
    let plain = inner.score().scores(cache, layer, margin);
    let method = cache.settings.method;
    let budget = cache.budget(layer);
    let recent = method.recent.of(budget, method.sinks);
    let space = budget.saturating_sub(method.sinks + recent);
    let mut gated = |scores: &[f64]| {
        let end = scores.len().saturating_sub(recent);
        let counted: Vec<usize> = (method.sinks.min(end)..end).collect();
        gate(scores, &counted, (length, few), space, margin)
    };
    if matches!(method.allocate, Allocate::HeadAdaptive { .. }) {
        return plain.iter().map(|scores| gated(scores)).collect();
    }
    let mean =
        |token: usize| plain.iter().map(|head| head[token]).sum::<f64>() / plain.len() as f64;
    let means: Vec<f64> = (0..plain[0].len()).map(mean).collect();
    vec![gated(&means); plain.len()]
}

fn gate(
    scores: &[f64],
    counted: &[usize],
    (length, few): (usize, usize),
    space: usize,
    margin: &mut Margin,
) -> Vec<f64> {
    let of_chunk = |chunk: usize| -> Vec<usize> {
        let mut tokens: Vec<usize> =
            counted.iter().copied().filter(|token| token / length == chunk).collect();
        tokens.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap().then(a.cmp(&b)));
        tokens
    };
    let chunks: Vec<Vec<usize>> = (0..scores.len().div_ceil(length))
        .map(of_chunk)
        .filter(|chunk| !chunk.is_empty())
        .collect();
    let mean = |chunk: &Vec<usize>| {
        chunk.iter().map(|&token| scores[token]).sum::<f64>() / chunk.len() as f64
    };
    let entropy = |chunk: &Vec<usize>| {
        let least = scores[chunk[chunk.len() - 1]].min(0.0);
        let all: f64 = chunk.iter().map(|&token| scores[token] - least).sum();
        let mut sum = 0.0;
        for &token in chunk {
            let share = (scores[token] - least) / all;
            if all > 0.0 && share > 0.0 {
                sum += share * (1.0 / share).ln() / (chunk.len() as f64).ln();
            }
        }
        if chunk.len() == 1 { 0.0 } else { sum }
    };
    let means: Vec<f64> = chunks.iter().map(mean).collect();
    let entropies: Vec<f64> = chunks.iter().map(entropy).collect();
    let median = |numbers: &[f64], margin: &mut Margin| {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(|a, b| a.partial_cmp(b).unwrap());
        for pair in sorted.windows(2) {
            margin.score(relative(pair[0], pair[1]));
        }
        sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
    };
    let (middle, unsure) = (median(&means, margin), median(&entropies, margin));
    let mut order: Vec<usize> = (0..chunks.len()).collect();
    order.sort_by(|&a, &b| means[b].partial_cmp(&means[a]).unwrap().then(a.cmp(&b)));
    // (what kind of turn, which token)
    let mut turns = Vec::new();
    let mut rest = Vec::new();
    for index in order {
        let chunk = &chunks[index];
        let gated = means[index] >= middle && entropies[index] < unsure;
        let gives = if gated { few.min(chunk.len()) } else { chunk.len() };
        turns.extend(chunk[..gives].iter().map(|&token| (index, token)));
        if let (true, Some(&next)) = (gated, chunk.get(gives)) {
            margin.score(relative(scores[chunk[gives - 1]], scores[next]));
        }
        rest.extend_from_slice(&chunk[gives..]);
    }
    rest.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap().then(a.cmp(&b)));
    turns.extend(rest.into_iter().map(|token| (usize::MAX, token)));
    if let (Some(last), Some(next)) = (turns.get(space.wrapping_sub(1)), turns.get(space))
        && last.0 == next.0
    {
        margin.score(relative(scores[last.1], scores[next.1]));
    }
    let mut found = vec![0.0; scores.len()];
    for (place, &(_, token)) in turns.iter().rev().enumerate() {
        found[token] = place as f64;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Method;
    use crate::reference::score::by_hand::{assert_near, cache, keys};

    #[test]
    fn a_spike_among_chunks_of_three() {
        // Moved up to 0 the first chunk is one token and nothing else: it gives one.
        let mut cache = cache(Method::knorm(), 9);
        cache.layers[0].heads = vec![keys(&[1.0, 4.0, 4.0, 3.0, 3.5, 4.0, 3.0, 3.6, 4.0])];
        let found = scores(&cache, 0, (3, 1), Inner::KeyNorm, &mut Margin::default());
        assert_near(&found[0], &[8.0, 1.0, 0.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0]);
    }
}
