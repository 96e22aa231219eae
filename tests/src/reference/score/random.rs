//! A number drawn for each token.

use crate::reference::Entry;
use crate::reference::reduce::value_merge::Draw;

/// `[kv_heads][entries]`
pub fn scores(heads: &[Vec<Entry>], seed: u64, layer: usize) -> Vec<Vec<f64>> {
    let of_head = |(head, entries): (usize, &Vec<Entry>)| {
        let draw = Draw { seed, layer, head };
        entries.iter().map(|entry| draw.at(entry.position)).collect()
    };
    heads.iter().enumerate().map(of_head).collect()
}
