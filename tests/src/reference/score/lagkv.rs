//! LagKV: channels scaled by the range they have in the partition that follows.

use crate::reference::Entry;
use crate::reference::margin::{Margin, relative};

/// `[kv_heads][entries]`
pub fn scores(
    heads: &[Vec<Entry>],
    sinks: usize,
    lag: usize,
    margin: &mut Margin,
) -> Vec<Vec<f64>> {
    heads.iter().map(|entries| of_head(entries, sinks, lag, margin)).collect()
}

fn of_head(entries: &[Entry], sinks: usize, lag: usize, margin: &mut Margin) -> Vec<f64> {
    let mut scores = vec![1.0; entries.len()];
    let partitions: Vec<&[Entry]> =
        entries.get(sinks..).unwrap_or_default().chunks_exact(lag).collect();
    if partitions.len() < 2 {
        for (index, score) in scores.iter_mut().enumerate().skip(sinks) {
            *score = (index - sinks) as f64 / (entries.len() - sinks) as f64;
        }
        return scores;
    }
    for (partition, pair) in partitions.windows(2).enumerate() {
        let of_keys = spread(pair, |entry| &entry.key);
        let of_values = spread(pair, |entry| &entry.value);
        let means: Vec<f64> =
            of_keys.iter().zip(&of_values).map(|(key, value)| (key + value) / 2.0).collect();
        let mut order: Vec<usize> = (0..lag).collect();
        order.sort_by(|a, b| means[*a].total_cmp(&means[*b]));
        for pair in order.windows(2) {
            margin.score(relative(means[pair[0]], means[pair[1]]));
        }
        for (rank, index) in order.into_iter().enumerate() {
            scores[sinks + partition * lag + index] = rank as f64 / lag as f64;
        }
    }
    scores
}

/// The softmax over the first partition of the deviation of a token's channels, scaled by their
/// range in the second.
fn spread(pair: &[&[Entry]], vector: fn(&Entry) -> &Vec<f64>) -> Vec<f64> {
    let channels = vector(&pair[0][0]).len();
    let mut powers = Vec::new();
    for entry in pair[0] {
        let mut scaled = Vec::new();
        for channel in 0..channels {
            let next = || pair[1].iter().map(|entry| vector(entry)[channel]);
            let least = next().fold(f64::INFINITY, f64::min);
            let most = next().fold(f64::NEG_INFINITY, f64::max);
            let range = if most == least { 1.0 } else { most - least };
            scaled.push((vector(entry)[channel] - least) / range);
        }
        let mean = scaled.iter().sum::<f64>() / channels as f64;
        let squares: f64 = scaled.iter().map(|x| (x - mean).powi(2)).sum();
        powers.push((squares / (channels.max(2) - 1) as f64).sqrt().exp());
    }
    let total: f64 = powers.iter().sum();
    powers.iter().map(|power| power / total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, entry};

    #[test]
    fn two_partitions_of_two_behind_a_sink() {
        // The second partition's channels are within 0..1 and 0..2: (1, 2) becomes (1, 1), (1, 0)
        // stays. A tail of one.
        let vectors = [[9.0, 9.0], [1.0, 2.0], [1.0, 0.0], [0.0, 0.0], [1.0, 2.0], [5.0, 5.0]];
        let entries: Vec<Entry> = (0..6).map(|i| entry(i, &vectors[i], &vectors[i], 0.0)).collect();
        let mut margin = Margin::default();
        let heads = [entries];
        let found = scores(&heads, 1, 2, &mut margin);
        assert_near(&found[0], &[1.0, 0.0, 0.5, 1.0, 1.0, 1.0]);
        // A deviation of √½ against none.
        assert!((margin.scores - (1.0 - 1.0 / 0.5_f64.sqrt().exp())).abs() < 1e-12);
        let found = scores(&heads, 1, 4, &mut margin);
        assert_near(&found[0], &[1.0, 0.0, 0.2, 0.4, 0.6, 0.8]);
    }
}
