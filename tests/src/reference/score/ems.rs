//! EMS: the larger of what all queries attend to and what the last ones do.

use super::window::{Pool, outside, smooth, window_weights};
use crate::reference::{Entry, LayerCache, ModelCache};

/// Queries whose attention counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The larger of both.
    Both,
    /// That of all queries.
    All,
    /// That of the last ones.
    Window,
}

/// After tokens of a prompt: its last `window` queries are a finished window.
pub fn after_prompt(cache: &mut ModelCache, layer: usize, window: usize) {
    let group = cache.settings.query_heads / cache.settings.kv_heads;
    let window = window.min(cache.layers[layer].seen - cache.layers[layer].prompt_start);
    let weights = window_weights(cache, layer, window);
    let layer = &mut cache.layers[layer];
    for (kv_head, entries) in layer.heads.iter_mut().enumerate() {
        let of_group = &weights[kv_head * group..(kv_head + 1) * group];
        for (index, entry) in entries.iter_mut().enumerate() {
            let received = of_group.iter().flatten().map(|row| row[index]);
            entry.past = received.sum::<f64>() / group as f64;
            entry.current = 0.0;
        }
    }
    layer.in_window = 0;
}

/// After a decoded token: every entry's last weight is of its query. After every `window` of them a
/// window is finished.
pub fn after_decoded(layer: &mut LayerCache, window: usize) {
    layer.in_window += 1;
    for entry in layer.heads.iter_mut().flatten() {
        let last = entry.received.iter().map(|received| received[received.len() - 1]);
        entry.current += last.sum::<f64>() / entry.received.len() as f64;
        if layer.in_window == window {
            entry.past = entry.current;
            entry.current = 0.0;
        }
    }
    if layer.in_window == window {
        layer.in_window = 0;
    }
}

/// `[kv_heads][entries]`; the last `window` tokens have zero, unless they are smoothed with the
/// others.
pub fn scores(
    layer: &LayerCache,
    window: usize,
    pool: Option<Pool>,
    from: From,
    pool_window: bool,
) -> Vec<Vec<f64>> {
    let mut all = Vec::new();
    for entries in &layer.heads {
        let global: Vec<f64> = entries.iter().map(Entry::accumulated).collect();
        let local: Vec<f64> = entries.iter().map(|entry| entry.past + entry.current).collect();
        let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
        let (of_global, of_local) = (mean(&global), mean(&local));
        let factor = if of_global == 0.0 { 0.0 } else { of_local / of_global };
        let mut scores: Vec<f64> = global
            .iter()
            .zip(&local)
            .map(|(global, local)| match from {
                From::Both => (global * factor).max(*local),
                From::All => *global,
                From::Window => *local,
            })
            .collect();
        if !pool_window {
            scores.truncate(outside(layer, entries, window));
        }
        let mut scores = smooth(&scores, pool);
        scores.resize(entries.len(), 0.0);
        all.push(scores);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Method;
    use crate::reference::score::by_hand::{assert_near, cache, entry, prompt};

    #[test]
    fn the_larger_after_alignment() {
        let mut cache = cache(Method::ems(), 9);
        cache.layers[0].seen = 5;
        // Global 6 2 4 6 2, mean 4; local 1 1 4 2 2, mean 2: global is halved. The last two of five
        // tokens stand aside.
        let numbers = [(6.0, 1.0), (2.0, 1.0), (4.0, 4.0), (6.0, 2.0), (2.0, 2.0)];
        for (position, (global, local)) in numbers.into_iter().enumerate() {
            let past = local - 0.5;
            let entry = Entry { past, current: 0.5, ..entry(position, &[0.0], &[0.0], global) };
            cache.layers[0].heads[0].push(entry);
        }
        let scores = |pool, from, all| scores(&cache.layers[0], 2, pool, from, all).remove(0);
        assert_near(&scores(None, From::Both, false), &[3.0, 1.0, 4.0, 0.0, 0.0]);
        assert_near(&scores(None, From::All, false), &[6.0, 2.0, 4.0, 0.0, 0.0]);
        assert_near(&scores(None, From::Window, false), &[1.0, 1.0, 4.0, 0.0, 0.0]);
        let pool = Some(Pool::Average(3));
        let third = [4.0 / 3.0, 8.0 / 3.0, 5.0 / 3.0, 0.0, 0.0];
        assert_near(&scores(pool, From::Both, false), &third);
        let third = [4.0 / 3.0, 8.0 / 3.0, 8.0 / 3.0, 3.0, 5.0 / 3.0];
        assert_near(&scores(pool, From::Both, true), &third);
    }

    #[test]
    fn windows_of_two_decoded_tokens() {
        let mut cache = cache(Method::ems().with_window(2), 9);
        // The last two of three queries give the first token 1/2 and 1/3.
        prompt(&mut cache, &[1.0, 1.0, 1.0]);
        let first = |cache: &ModelCache| {
            let entry = &cache.layers[0].heads[0][0];
            [entry.past, entry.current, entry.accumulated()]
        };
        assert_near(&first(&cache), &[5.0 / 6.0, 0.0, 11.0 / 6.0]);
        // Decoded tokens give it 1/4, 1/5, 1/6.
        let zero = [vec![vec![0.0]]];
        cache.decode(0, &zero, &zero, &zero);
        assert_near(&first(&cache), &[5.0 / 6.0, 0.25, 11.0 / 6.0 + 0.25]);
        cache.decode(0, &zero, &zero, &zero);
        assert_near(&first(&cache), &[0.45, 0.0, 11.0 / 6.0 + 0.45]);
        cache.decode(0, &zero, &zero, &zero);
        assert_near(&first(&cache), &[0.45, 1.0 / 6.0, 11.0 / 6.0 + 0.45 + 1.0 / 6.0]);
    }
}
