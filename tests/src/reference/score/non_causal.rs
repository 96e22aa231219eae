//! Compactor's second half: what the queries of an entry's own chunk give it, later ones and
//! earlier ones.

use super::knorm::length;
use super::window::{Pool, smooth};
use crate::reference::attention::weights;
use crate::reference::{Entry, ModelCache};

/// Counts, before a layer is compressed, the weights that the queries since the last time give to
/// the entries of their chunks.
pub fn before_compression(cache: &mut ModelCache, layer: usize, chunk: usize) {
    let (sinks, encoding) = (cache.settings.method.sinks, cache.settings.encoding);
    let group = cache.settings.query_heads / cache.settings.kv_heads;
    let (first, seen) = (cache.queries_from(layer), cache.layers[layer].seen);
    let chunk_of = |position: usize| (position - sinks) / chunk;
    let first = first.max(sinks);
    if first >= seen {
        return;
    }
    for head in 0..cache.settings.kv_heads {
        let entries = &cache.layers[layer].heads[head];
        let offset = entries.len() - (seen - first);
        let key = |position: usize| {
            let key = &entries[offset + position - first].key;
            match cache.settings.method.positions {
                crate::reference::Positions::Written => key.clone(),
                _ => encoding.encode(key, position),
            }
        };
        let keys: Vec<Vec<f64>> = (first..seen).map(key).collect();
        let mut sums = vec![0.0; keys.len()];
        for query_head in head * group..(head + 1) * group {
            for position in first..seen {
                let mates: Vec<usize> =
                    (first..seen).filter(|mate| chunk_of(*mate) == chunk_of(position)).collect();
                let query = &cache.layers[layer].queries[query_head][position];
                let query = encoding.encode(query, position);
                let of_mates: Vec<Vec<f64>> =
                    mates.iter().map(|mate| keys[mate - first].clone()).collect();
                for (mate, weight) in mates.iter().zip(weights(&query, &of_mates, 1.0)) {
                    sums[mate - first] += weight / group as f64;
                }
            }
        }
        for (entry, sum) in cache.layers[layer].heads[head][offset..].iter_mut().zip(sums) {
            entry.chunk = sum;
        }
    }
}

/// `[kv_heads][entries]`
pub fn scores(heads: &[Vec<Entry>], pool: Option<Pool>) -> Vec<Vec<f64>> {
    let score = |entry: &Entry| entry.chunk * length(&entry.value);
    let of_head =
        |entries: &Vec<Entry>| smooth(&entries.iter().map(score).collect::<Vec<f64>>(), pool);
    heads.iter().map(of_head).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Method;
    use crate::reference::score::by_hand::{assert_near, cache, prompt};

    #[test]
    fn chunks_of_two_behind_a_sink() {
        // 1 3 · 5 15 · 7: every query of a chunk gives a quarter and three, the last all to itself.
        // Values are positions.
        let mut cache = cache(Method { sinks: 1, ..Method::full() }, 9);
        prompt(&mut cache, &[9.0, 1.0, 3.0, 5.0, 15.0, 7.0]);
        before_compression(&mut cache, 0, 2);
        let heads = &cache.layers[0].heads;
        let sums: Vec<f64> = heads[0].iter().map(|entry| entry.chunk).collect();
        assert_near(&sums, &[0.0, 0.5, 1.5, 0.5, 1.5, 1.0]);
        assert_near(&scores(heads, None)[0], &[0.0, 0.5, 3.0, 1.5, 6.0, 5.0]);
    }
}
