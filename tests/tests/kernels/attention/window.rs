//! Odd sizes, groups, padding among queries and entries, windows longer than a tile, entries that
//! cross tiles and splits.

use briquette::ops::{Reference, Visibility};
use briquette_kernels::{supports, window_moments, window_weights};
use briquette_ops::{AttentionOps, MomentsInput, MomentsOutput, Scoring, WindowInput};
use briquette_tests::{
    backends::{Backend, host},
    inputs::Noise,
};
use burn::tensor::{DType, Device, Tensor};

use crate::common::{
    RefusedBy, all_backends, answer, each_dtype, f64s, integers, kernel_backends, numbers, turned,
};

#[derive(Debug)]
struct Case {
    batch: usize,
    query_heads: usize,
    kv_heads: usize,
    queries: usize,
    entries: usize,
    head_dim: usize,
    by_position: bool,
}

fn case(
    (batch, query_heads, kv_heads): (usize, usize, usize),
    queries: usize,
    entries: usize,
    head_dim: usize,
    by_position: bool,
) -> Case {
    Case { batch, query_heads, kv_heads, queries, entries, head_dim, by_position }
}

fn cases() -> Vec<Case> {
    vec![
        case((1, 1, 1), 1, 1, 64, false),
        case((2, 4, 2), 8, 300, 64, true),
        case((1, 2, 2), 1, 257, 64, false),
        case((1, 4, 1), 3, 2, 64, false),
        case((1, 5, 1), 33, 130, 64, true),
        case((1, 2, 1), 300, 131, 7, true),
        // More cubes than a device needs: a split has two tiles.
        case((64, 8, 8), 1, 300, 4, false),
        // The largest tiles.
        case((64, 4, 2), 61, 300, 4, true),
        // On tensor cores: all rows of a kv head in one cube, in two, a head in one alone, many
        // tiles of keys a plane.
        case((1, 8, 2), 32, 300, 128, false),
        case((2, 6, 1), 33, 131, 64, true),
        case((1, 2, 1), 150, 333, 64, true),
        case((64, 8, 8), 1, 300, 32, false),
    ]
}

/// Weights and sums that the queries of a case give to its entries.
struct Expected {
    /// `[batch, query_heads, queries, entries]`
    weights: Vec<f64>,
    /// `[batch, query_heads, entries]` each
    sums: Vec<f64>,
    deviations: Vec<f64>,
    entropies: Vec<f64>,
}

impl Case {
    /// Positions of queries and entries, `[batch, queries]` and `[batch · kv_heads, entries]`: some
    /// of the first are padding, and entries have been evicted between others.
    fn positions(&self) -> (Vec<i64>, Vec<i64>) {
        let Self { batch, kv_heads, queries, entries, .. } = *self;
        let seen = entries as i64 + 3 * queries as i64;
        let mut of_queries = Vec::new();
        let mut of_entries = Vec::new();
        for row in 0..batch {
            let padding = if queries > 2 { 1 + row % 7 } else { 0 };
            of_queries.extend((0..queries).map(|query| match query < padding {
                true => -1,
                false => seen + query as i64 - queries as i64,
            }));
            for head in 0..kv_heads {
                of_entries.extend((0..entries).map(|entry| match entry < (row + head) % 5 {
                    true => -1,
                    false => {
                        let first = seen - entries as i64 - queries as i64;
                        first + entry as i64 + (entry / 2).min(queries) as i64
                    }
                }));
            }
        }
        (of_queries, of_entries)
    }

    /// Number of queries that are a row's own.
    fn own(&self) -> Vec<usize> {
        let padding = |row: usize| if self.queries > 2 { 1 + row % 7 } else { 0 };
        (0..self.batch).map(|row| self.queries - padding(row)).collect()
    }

    fn expected(&self, q: &[f64], k: &[f64], scale: f64) -> Expected {
        let Self { batch, query_heads, kv_heads, queries, entries, head_dim, by_position } = *self;
        let (of_queries, of_entries) = self.positions();
        let own = self.own();
        let mut weights = Vec::new();
        let (mut sums, mut deviations, mut entropies) = (Vec::new(), Vec::new(), Vec::new());
        for head in 0..batch * query_heads {
            let row = head / query_heads;
            let kv_head = row * kv_heads + head % query_heads * kv_heads / query_heads;
            let mut of_head = Vec::new();
            for query in 0..queries {
                let at = of_queries[row * queries + query];
                let mut scores: Vec<f64> = (0..entries)
                    .map(|entry| {
                        let position = of_entries[kv_head * entries + entry];
                        let seen = match by_position {
                            true => position >= 0 && position <= at,
                            false => entry <= query + entries.saturating_sub(queries),
                        };
                        if !seen {
                            return -1e30;
                        }
                        let q = &q[(head * queries + query) * head_dim..][..head_dim];
                        let k = &k[(kv_head * entries + entry) * head_dim..][..head_dim];
                        q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * scale
                    })
                    .collect();
                let highest = scores.iter().copied().fold(f64::MIN, f64::max);
                scores.iter_mut().for_each(|score| *score = (*score - highest).exp());
                let total: f64 = scores.iter().sum();
                let padding = by_position && at < 0;
                let weigh = |score: f64| if padding { 0.0 } else { score / total };
                of_head.push(scores.into_iter().map(weigh).collect::<Vec<f64>>());
            }
            let counted = &of_head[queries - own[row]..];
            for entry in 0..entries {
                let column = counted.iter().map(|weights| weights[entry]);
                let sum: f64 = column.clone().sum();
                let mean = sum / counted.len().max(1) as f64;
                sums.push(sum);
                deviations.push(column.clone().map(|w| (w - mean).powi(2)).sum());
                entropies.push(column.map(|w| -w * (w + 1e-10).ln()).sum());
            }
            weights.extend(of_head.concat());
        }
        Expected { weights, sums, deviations, entropies }
    }

    fn visibility(&self, device: &Device) -> Visibility {
        let Self { batch, kv_heads, queries, entries, .. } = *self;
        if !self.by_position {
            return Visibility::Causal;
        }
        let (of_queries, of_entries) = self.positions();
        Visibility::Positions {
            queries: integers(&of_queries, [batch, 1, queries], device),
            entries: integers(&of_entries, [batch, kv_heads, entries], device),
        }
    }

    /// The operations against every weight in f64.
    fn check(&self, dtype: DType, backend: &Backend) {
        let Self { batch, query_heads, kv_heads, queries, entries, head_dim, .. } = *self;
        let device = &backend.device;
        let host = host();
        let mut noise = Noise::new((entries * head_dim) as u64);
        let q = noise.tensor([batch, query_heads, queries, head_dim], &host).cast(dtype);
        let k = noise.tensor([batch, kv_heads, entries, head_dim], &host).cast(dtype);
        let scale = 0.3;
        let expected = self.expected(&f64s(&q), &f64s(&k), scale);
        let (visibility, scoring) = (self.visibility(device), Scoring::plain(scale));
        let (q, k) = (q.to_device(device), k.to_device(device));
        // A part of a wider tensor whose other part is NaN, and the transpose of another.
        let wide = Tensor::cat(vec![k.clone(), k.clone().mul_scalar(f32::NAN)], 2);
        let turned = turned(&q, 2, 3);
        let mut first = None;
        for (queries, keys) in [(q, k), (turned, wide.narrow(2, 0, entries))] {
            let (visibility, scoring) = (visibility.clone(), scoring.clone());
            let window = WindowInput { queries, keys, visibility, scoring };
            // What a buffer that is used again may hold.
            drop(Tensor::<3>::full([batch, query_heads, entries], f32::NAN, device) * 1.0);
            let weights =
                answer(backend, "window_weights", |kernels| kernels.window_weights(window.clone()));
            let moments = |deviations, entropies| {
                let (window, own) = (window.clone(), self.own());
                let input = MomentsInput { window, own, deviations, entropies };
                answer(backend, "window_moments", |kernels| kernels.window_moments(input))
            };
            let all = moments(true, true);
            let (deviations, entropies) = (all.deviations.unwrap(), all.entropies.unwrap());
            let shape = [batch, query_heads, entries];
            assert_eq!([all.sums.dims(), deviations.dims(), entropies.dims()], [shape; 3]);
            if first.is_none() {
                let alone = moments(false, false);
                assert!(alone.deviations.is_none() && alone.entropies.is_none());
                let (alone, sums) = (alone.sums.into_data(), all.sums.clone().into_data());
                assert_eq!(sums, alone, "what else is wanted changes nothing");
            }
            let weights = numbers(weights);
            let [sums, deviations, entropies] = [all.sums, deviations, entropies].map(numbers);
            let close = |what: &str, found: &[f32], expected: &[f64]| {
                assert_eq!(found.len(), expected.len());
                for (found, expected) in found.iter().zip(expected) {
                    let off = (f64::from(*found) - expected).abs();
                    assert!(
                        off <= 2e-6 + 1e-4 * expected.abs(),
                        "{what} {found}, expected {expected}, {self:?}, {dtype:?}"
                    );
                }
            };
            close("weight", &weights, &expected.weights);
            close("sum", &sums, &expected.sums);
            close("deviation", &deviations, &expected.deviations);
            close("entropy", &entropies, &expected.entropies);
            let all = [weights, sums, deviations, entropies];
            let same = first.get_or_insert_with(|| all.clone()) == &all;
            // Products of Burn's may be added up in another order.
            assert!(same || !supports(device), "layout changes nothing, {self:?}, {dtype:?}");
        }
    }
}

#[test]
fn window_scores_are_those_of_softmax() {
    each_dtype(all_backends(), |backend, dtype| {
        // Tensor cores take rows of other types than this, of so many channels.
        let all = dtype == DType::F32;
        let cases = backend.some(cases(), DType::F32).into_iter();
        for case in cases.filter(|case| all || case.head_dim % 32 == 0) {
            println!("{}, {dtype:?}, {case:?}", backend.name);
            case.check(dtype, backend);
        }
    });
}

/// A query that sees nothing weights all entries alike, and what a query does not see may be
/// anything.
#[test]
fn window_scores_of_blind_queries_and_unseen_entries() {
    for backend in kernel_backends() {
        let device = &backend.device;
        let tensor = |numbers: &[f32]| Tensor::<1>::from_floats(numbers, device);
        let keys = tensor(&[1.0, 0.0, 0.0, 1.0, f32::NAN, f32::INFINITY]).reshape([1, 1, 3, 2]);
        let positions = |x: &[i32]| integers(x, [1, 1, x.len()], device);
        let window = WindowInput {
            queries: tensor(&[0.0; 6]).reshape([1, 1, 3, 2]),
            keys,
            visibility: Visibility::Positions {
                queries: positions(&[-1, 2, 5]),
                entries: positions(&[3, 4, 6]),
            },
            scoring: Scoring::plain(1.0),
        };
        let found = numbers(window_weights(window).unwrap());
        let third = 1.0 / 3.0;
        let expected = [0.0, 0.0, 0.0, third, third, third, 0.5, 0.5, 0.0];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found}, expected {expected}");
        }
    }
}

fn window(queries: [usize; 4], keys: [usize; 4], device: &Device) -> WindowInput {
    WindowInput {
        queries: Tensor::zeros(queries, (device, DType::F32)),
        keys: Tensor::zeros(keys, (device, DType::F32)),
        visibility: Visibility::Positions {
            queries: Tensor::zeros([queries[0], 1, queries[2]], device),
            entries: Tensor::zeros([keys[0], keys[1], keys[2]], device),
        },
        scoring: Scoring::plain(1.0),
    }
}

#[test]
fn window_scores_refuse_what_does_not_fit() {
    let by = RefusedBy("window_weights");
    let error = window_weights(window([1, 2, 3, 4], [1, 1, 5, 4], &host())).unwrap_err();
    assert_eq!(error, by.device());
    for backend in kernel_backends() {
        let window = |queries, keys| window(queries, keys, &backend.device);
        let refused = |queries, keys| window_weights(window(queries, keys)).unwrap_err();
        assert_eq!(refused([1, 2, 3, 4], [1, 1, 0, 4]), by.value("entries", 0, "1 or more"));
        let expected = by.value("query_heads", 3, "a multiple of 2");
        assert_eq!(refused([1, 3, 3, 4], [1, 2, 5, 4]), expected);
        let expected = by.shape("keys", &[1, 2, 5, 6], &[1, 2, 5, 4]);
        assert_eq!(refused([1, 2, 3, 4], [1, 2, 5, 6]), expected);
        let (window, own) = (window([1, 2, 3, 4], [1, 2, 5, 4]), vec![4]);
        let four = MomentsInput { window, own, deviations: false, entropies: false };
        let expected = RefusedBy("window_moments").value("counted", 4, "at most 3");
        assert_eq!(window_moments(four).unwrap_err(), expected);
    }
}

/// The kernels return the same as tensor operations.
#[test]
fn window_scores_are_the_reference() {
    for backend in kernel_backends() {
        let case = case((2, 4, 2), 6, 40, 16, true);
        let device = &backend.device;
        let mut noise = Noise::new(7);
        let window = WindowInput {
            queries: noise.tensor([2, 4, 6, 16], device),
            keys: noise.tensor([2, 2, 40, 16], device),
            visibility: case.visibility(device),
            scoring: Scoring::plain(0.5),
        };
        let close = |found: f32| assert!(found < 1e-5, "{found}");
        let found =
            answer(&backend, "window_weights", |kernels| kernels.window_weights(window.clone()));
        let off = found - Reference.window_weights(window.clone()).unwrap();
        close(off.abs().max().try_into_scalar::<f32>().unwrap());
        let input = MomentsInput { window, own: case.own(), deviations: true, entropies: true };
        let found =
            answer(&backend, "window_moments", |kernels| kernels.window_moments(input.clone()));
        let expected = Reference.window_moments(input).unwrap();
        let all = |x: MomentsOutput| {
            Tensor::cat(vec![x.sums, x.deviations.unwrap(), x.entropies.unwrap()], 0)
        };
        close((all(found) - all(expected)).abs().max().try_into_scalar::<f32>().unwrap());
    }
}
