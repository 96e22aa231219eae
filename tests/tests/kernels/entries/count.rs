//! Weights of query heads, and their squares, added to statistics of heads that they share, of some
//! kinds and of all.

use briquette::ops::{AttentionStatistics, Statistic};
use briquette_kernels::count;
use briquette_ops::{CountInput, EntryOps};
use burn::tensor::{DType, Device, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{RefusedBy, all_backends, answer, close, floats, kernel_backends, numbers};

const KINDS: [Statistic; 4] =
    [Statistic::Sums, Statistic::Squares, Statistic::LocalPast, Statistic::LocalCurrent];

/// Batch rows, heads of statistics, query heads of each, columns, kinds of statistics.
const CASES: [[usize; 5]; 5] =
    [[1, 1, 1, 1, 1], [2, 3, 1, 5, 2], [1, 2, 4, 300, 1], [3, 2, 7, 33, 3], [2, 8, 4, 257, 4]];

fn drawn(dims: [usize; 3], seed: usize, device: &Device) -> (Vec<f64>, Tensor<3>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed as u64);
    let all: Vec<f32> = (0..dims.iter().product()).map(|_| rng.random_range(0.0..4.0)).collect();
    let tensor = floats(&all, dims, device);
    (all.into_iter().map(f64::from).collect(), tensor)
}

#[test]
fn the_mean_of_the_query_heads_is_added() {
    for backend in all_backends() {
        let device = &backend.device;
        for (seed, [batch, heads, group, columns, kinds]) in CASES.into_iter().enumerate() {
            let (weights, of_queries) = drawn([batch, heads * group, columns], seed, device);
            for added in [&KINDS[..1], &[KINDS[3], KINDS[0]], &KINDS[1..2], &KINDS[..2]] {
                let (mut expected, mut statistics) = (Vec::new(), Vec::new());
                for (place, kind) in KINDS.into_iter().take(kinds).enumerate() {
                    let dims = [batch, heads, columns];
                    let (mut before, tensor) = drawn(dims, 10 + seed + place, device);
                    statistics.push((kind, tensor));
                    if added.contains(&kind) {
                        for (at, number) in before.iter_mut().enumerate() {
                            let (list, column) = (at / columns, at % columns);
                            let of_head = |head: usize| {
                                let weight = weights[(list * group + head) * columns + column];
                                let is_square = kind == Statistic::Squares;
                                (if is_square { weight * weight } else { weight }) / group as f64
                            };
                            *number += (0..group).map(of_head).sum::<f64>();
                        }
                    }
                    expected.extend(before);
                }
                let input = CountInput {
                    statistics: AttentionStatistics::new(statistics),
                    weights: of_queries.clone(),
                    kinds: added,
                };
                let found = answer(&backend, "count", |ops| ops.count(input));
                let found = numbers(found.stacked().unwrap().clone());
                close(&found, &expected, DType::F32, 1e-6);
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for backend in kernel_backends() {
        let device = &backend.device;
        let refused = |heads, query_heads, columns| {
            let (_, statistics) = drawn([2, heads, 7], 1, device);
            let (_, weights) = drawn([2, query_heads, columns], 2, device);
            let statistics = AttentionStatistics::new([(Statistic::Sums, statistics)]);
            count(CountInput { statistics, weights, kinds: &KINDS[..1] }).unwrap_err()
        };
        let by = RefusedBy("count");
        assert_eq!(refused(2, 3, 7), by.value("query_heads", 3, "a multiple of 2"));
        assert_eq!(refused(2, 4, 6), by.shape("statistics", &[2, 2, 7], &[2, 2, 6]));
    }
}
