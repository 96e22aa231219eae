//! How much each query head retrieves.
//!
//! The prompt is a context (introduction, prose and one needle) and a question; the answer has `n`
//! tokens, which stand in the needle too: the *answer span*. Token `t` of the answer comes out of
//! the query at the token before it. Let `a[t, j]` be the attention of that query, in one head, on
//! position `j` of the context (after the softmax over everything the query sees). One prompt gives
//! a head
//!
//! - *semantic* (CompressKV): the mean over `t` of the sum of `a[t, j]` over the answer span. A
//!   head that reads the whole answer at once gets as much as one that reads it in order.
//! - *copy-paste* (Wu et al., 2024): the share of `t` at which the most attended position of the
//!   context is the one of answer token `t` in the needle.
//! - *headkv* (Fu et al., 2024): the mean over `t` of the sum of `a[t, j]` over those positions of
//!   the answer span that are among the `n` most attended of the context.
//!
//! A score is the mean over all prompts. Equal weights: the older position counts as more attended.

use std::ops::Range;

use briquette::HeadScores;
use serde::{Deserialize, Serialize};

/// Scores of every head from one prompt, each `[layers][query_heads]`. In f32, which JSON gives
/// back exactly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadSample {
    /// See [the module](self).
    pub semantic: Vec<Vec<f32>>,
    /// See [the module](self).
    pub copy_paste: Vec<Vec<f32>>,
    /// See [the module](self).
    pub headkv: Vec<Vec<f32>>,
}

/// The three scores of one head in one prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadScore {
    /// See [the module](self).
    pub semantic: f64,
    /// See [the module](self).
    pub copy_paste: f64,
    /// See [the module](self).
    pub headkv: f64,
}

impl HeadScore {
    /// Scores a head. `weights` are one row a token of the answer, over the positions of the
    /// context; `span` is the answer in the context.
    pub fn of(weights: &[&[f32]], span: &Range<usize>) -> Self {
        let (mut semantic, mut copied, mut headkv) = (0.0, 0.0, 0.0);
        for (token, row) in weights.iter().enumerate() {
            let sum = |positions: &mut dyn Iterator<Item = usize>| -> f64 {
                positions.map(|position| f64::from(row[position])).sum()
            };
            semantic += sum(&mut span.clone());
            let most = most_attended(row, span.len());
            copied += f64::from(u8::from(most.first() == Some(&(span.start + token))));
            headkv += sum(&mut most.into_iter().filter(|position| span.contains(position)));
        }
        let tokens = weights.len().max(1) as f64;
        Self { semantic: semantic / tokens, copy_paste: copied / tokens, headkv: headkv / tokens }
    }
}

/// The positions of the `count` highest weights, the highest first; of equal ones the older.
fn most_attended(weights: &[f32], count: usize) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..weights.len()).collect();
    let order = |a: &usize, b: &usize| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b));
    if (1..positions.len()).contains(&count) {
        positions.select_nth_unstable_by(count - 1, order);
        positions.truncate(count);
    }
    positions.sort_unstable_by(order);
    positions
}

impl HeadSample {
    /// Scores every head of a prompt. `layers` hold the weights of one layer each, row by row of
    /// `[query_heads][answer tokens][entries]`, of which the first `context` entries are the
    /// context.
    pub fn of(layers: &[Vec<f32>], heads: usize, context: usize, span: &Range<usize>) -> Self {
        let tokens = span.len();
        let score = |layer: &Vec<f32>| -> Vec<HeadScore> {
            let entries = layer.len() / (heads * tokens).max(1);
            let rows: Vec<&[f32]> =
                layer.chunks_exact(entries.max(1)).map(|row| &row[..context]).collect();
            rows.chunks_exact(tokens).map(|rows| HeadScore::of(rows, span)).collect()
        };
        let scores: Vec<Vec<HeadScore>> = layers.iter().map(score).collect();
        let table = |of: fn(&HeadScore) -> f64| -> Vec<Vec<f32>> {
            scores.iter().map(|heads| heads.iter().map(|head| of(head) as f32).collect()).collect()
        };
        Self {
            semantic: table(|score| score.semantic),
            copy_paste: table(|score| score.copy_paste),
            headkv: table(|score| score.headkv),
        }
    }
}

/// The mean over all prompts.
pub fn mean(samples: &[&HeadSample]) -> HeadScores {
    let table = |of: fn(&HeadSample) -> &Vec<Vec<f32>>| -> Vec<Vec<f64>> {
        let mut sums: Vec<Vec<f64>> = Vec::new();
        for sample in samples {
            let layers = of(sample);
            sums.resize(layers.len(), Vec::new());
            for (sums, heads) in sums.iter_mut().zip(layers) {
                sums.resize(heads.len(), 0.0);
                for (sum, score) in sums.iter_mut().zip(heads) {
                    *sum += f64::from(*score) / samples.len() as f64;
                }
            }
        }
        sums
    };
    HeadScores {
        semantic: table(|sample| &sample.semantic),
        copy_paste: table(|sample| &sample.copy_paste),
        headkv: table(|sample| &sample.headkv),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two answer tokens at positions 2 and 3 of a context of 5.
    const SPAN: Range<usize> = 2..4;

    #[test]
    fn scores_of_a_matrix_made_by_hand() {
        let score = |rows: [[f32; 5]; 2]| HeadScore::of(&[&rows[0], &rows[1]], &SPAN);
        let is = |score: HeadScore, semantic: f64, copy_paste: f64, headkv: f64| {
            for (found, expected) in
                [(score.semantic, semantic), (score.copy_paste, copy_paste), (score.headkv, headkv)]
            {
                assert!((found - expected).abs() < 1e-7, "{score:?}");
            }
        };
        // Reads the answer in order: each row's top token is the right one.
        is(score([[0.1, 0.0, 0.5, 0.2, 0.1], [0.1, 0.0, 0.1, 0.6, 0.2]]), 0.7, 1.0, 0.65);
        // Reads the right tokens the wrong way round: much attention on the answer, nothing copied.
        is(score([[0.0, 0.0, 0.3, 0.7, 0.0], [0.0, 0.0, 0.8, 0.2, 0.0]]), 1.0, 0.0, 1.0);
        // Two sinks take the two highest places, so neither of the strict scores sees the rest.
        is(score([[0.4, 0.3, 0.2, 0.1, 0.0], [0.4, 0.3, 0.1, 0.2, 0.0]]), 0.3, 0.0, 0.0);
        // Elsewhere.
        is(score([[0.5, 0.5, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]]), 0.0, 0.0, 0.0);
        // Equal weights: the older ones stand first.
        is(score([[0.0, 0.0, 0.2, 0.2, 0.2], [0.0, 0.0, 0.2, 0.2, 0.2]]), 0.4, 0.5, 0.4);
        is(score([[0.2; 5], [0.2; 5]]), 0.4, 0.0, 0.0);
    }

    #[test]
    fn layers_and_heads_are_kept_apart() {
        // 1 layer, 2 heads, 2 answer tokens, 7 entries of which 5 are the context.
        let first = [0.0, 0.0, 0.5, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0, 0.75];
        let second = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0];
        let sample = HeadSample::of(&[[first, second].concat()], 2, 5, &SPAN);
        assert_eq!(sample.semantic, [[0.375, 0.25]]);
        assert_eq!(sample.copy_paste, [[1.0, 0.0]]);
        assert_eq!(sample.headkv, [[0.375, 0.25]]);

        let other = HeadSample { semantic: vec![vec![0.125, 0.75]], ..sample.clone() };
        let scores = mean(&[&sample, &other]);
        assert_eq!(scores.semantic, [[0.25, 0.5]]);
        assert_eq!(scores.copy_paste, [[1.0, 0.0]]);
    }

    #[test]
    fn the_most_attended_are_the_highest() {
        let weights = [0.1, 0.4, 0.4, 0.0, 0.2];
        assert_eq!(most_attended(&weights, 1), [1]);
        assert_eq!(most_attended(&weights, 3), [1, 2, 4]);
        assert_eq!(most_attended(&weights, 5), [1, 2, 4, 0, 3]);
        assert_eq!(most_attended(&weights, 9), [1, 2, 4, 0, 3]);
    }
}
