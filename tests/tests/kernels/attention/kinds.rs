//! Weights that are more than a softmax of scaled products, against f64 on every backend.

use briquette::ops::{Fallback, OpError, Ops, Visibility};
use briquette_kernels::{FEW_QUERIES, Kernels, sparse_attention, supports};
use briquette_ops::{
    AttentionInput, AttentionOps, HeadPattern, MomentsInput, Scoring, SparseAttentionInput,
    WindowInput,
};
use briquette_tests::{
    backends::{Backend, host},
    inputs::Noise,
    reference::{Kind, attention::weighted_mean},
    session::tolerance,
};
use burn::tensor::{DType, Tensor};

use crate::{
    attention::{by_position, scoring},
    common::{
        RefusedBy, all_backends, binds_too_few, close, each_dtype, floats, kernel_backends,
        numbers, rows,
    },
};

const BATCH: usize = 2;
const QUERY_HEADS: usize = 4;
const KV_HEADS: usize = 2;
const SCALE: f64 = 0.5;

/// All kinds together and each alone.
fn kinds() -> [Kind; 10] {
    let (sinks, slopes) = (vec![-1.0, 0.0, 0.5, 3.0], vec![0.5, 0.25, 0.0625, 0.0]);
    let all = Kind { softcap: Some(1.5), sinks, slopes, window: Some(11), chunk: None };
    let none = Kind::default;
    [
        all.clone(),
        Kind { softcap: all.softcap, ..none() },
        Kind { sinks: all.sinks.clone(), ..none() },
        Kind { slopes: all.slopes.clone(), ..none() },
        Kind { window: all.window, ..none() },
        // More than a tile of keys.
        Kind { window: Some(45), ..none() },
        // A query sees itself alone, and nothing if it is padding.
        Kind { sinks: all.sinks.clone(), window: Some(1), ..none() },
        Kind { chunk: Some(11), ..none() },
        Kind { chunk: Some(45), ..none() },
        Kind { window: None, chunk: Some(32), ..all },
    ]
}

#[derive(Clone, Copy, Debug)]
struct Case {
    head_dim: usize,
    old: usize,
    new: usize,
    /// Whether positions say who sees what: with gaps, and padding in the second row of the batch.
    by_position: bool,
    /// Columns that queries come after their own: what was last is gone, all of a window if it is
    /// so many. Only by position.
    ahead: usize,
}

/// 16-bit types take every fourth of them where there are no tensor cores.
fn cases() -> [Case; 9] {
    let case =
        |head_dim, old, new, by_position, ahead| Case { head_dim, old, new, by_position, ahead };
    [
        case(64, 37, 150, false, 0),
        case(16, 0, 1, false, 0),
        case(64, 40, 1, true, 0),
        case(64, 21, 5, true, 0),
        case(64, 37, 150, true, 0),
        case(128, 300, 1, false, 0),
        case(64, 9, 30, true, 20),
        case(16, 0, 37, false, 0),
        case(64, 21, 5, false, 0),
    ]
}

#[derive(Default)]
struct Expected {
    output: Vec<f64>,
    sums: Vec<f64>,
    squares: Vec<f64>,
    /// `[batch, query_heads, new, entries]`
    weights: Vec<f64>,
}

/// Sums over the queries that count.
#[derive(Default)]
struct ExpectedMoments {
    sums: Vec<f64>,
    deviations: Vec<f64>,
    entropies: Vec<f64>,
}

impl Case {
    fn entries(&self) -> usize {
        self.old + self.new
    }

    fn padding(&self, row: usize) -> usize {
        if self.by_position && row == 1 { self.old + self.new / 3 } else { 0 }
    }

    /// The position of a column of a row; −1 is padding.
    fn position(&self, row: usize, column: usize) -> i64 {
        match self.by_position {
            true if column < self.padding(row) => -1,
            true => (column + column / 3) as i64 + 2,
            false => column as i64,
        }
    }

    /// Queries of a row that count: the last three quarters, as long as they are not padding.
    fn own(&self, row: usize) -> usize {
        let first = self.old + self.ahead;
        (self.new - self.new / 4).min(first + self.new - self.padding(row).max(first))
    }

    fn expected(&self, kind: &Kind, all: [&Tensor<4>; 3]) -> Expected {
        let (new, entries) = (self.new, self.entries());
        let [queries, keys, values] = all.map(rows);
        let mut expected = Expected::default();
        for row in 0..BATCH {
            let padding = self.padding(row);
            let positions: Vec<usize> =
                (padding..entries).map(|column| self.position(row, column) as usize).collect();
            for head in 0..QUERY_HEADS {
                let first = (row * KV_HEADS + head * KV_HEADS / QUERY_HEADS) * entries;
                let seen = first + padding..first + entries;
                let (keys, values) = (&keys[seen.clone()], &values[seen]);
                let (mut sums, mut squares) = (vec![0.0; entries], vec![0.0; entries]);
                for query in 0..new {
                    let mut weights = vec![0.0; entries];
                    let mut output = vec![0.0; self.head_dim];
                    let column = self.old + query + self.ahead;
                    let at = self.position(row, column).max(0) as usize;
                    // Columns of the row's own tokens that the query sees.
                    let end = (column + 1).min(entries).saturating_sub(padding);
                    let in_window = |last: &usize| kind.sees(at, *last);
                    if positions[..end].last().is_some_and(in_window) {
                        let asked = (&queries[(row * QUERY_HEADS + head) * new + query][..], at);
                        let own =
                            kind.weights(head, asked, (&keys[..end], &positions[..end]), SCALE);
                        output = weighted_mean(&own, &values[..end]);
                        weights[padding..padding + end].copy_from_slice(&own);
                    }
                    for (column, weight) in weights.iter().enumerate() {
                        sums[column] += weight;
                        squares[column] += weight * weight;
                    }
                    expected.output.extend(output);
                    expected.weights.extend(weights);
                }
                expected.sums.extend(sums);
                expected.squares.extend(squares);
            }
        }
        expected
    }

    /// What weights, `[batch, query_heads, new, entries]`, sum up to.
    fn moments(&self, weights: &[f64]) -> ExpectedMoments {
        let entries = self.entries();
        let mut moments = ExpectedMoments::default();
        for (head, weights) in weights.chunks(self.new * entries).enumerate() {
            let own = self.own(head / QUERY_HEADS);
            let counted = &weights[(self.new - own) * entries..];
            for entry in 0..entries {
                let column = counted.iter().skip(entry).step_by(entries);
                let sum: f64 = column.clone().sum();
                let mean = sum / own as f64;
                moments.sums.push(sum);
                moments.deviations.push(column.clone().map(|w| (w - mean).powi(2)).sum());
                moments.entropies.push(column.map(|w| -w * (w + 1e-10).ln()).sum());
            }
        }
        moments
    }

    fn check(&self, kind: &Kind, dtype: DType, backend: &Backend) {
        let device = &backend.device;
        let (new, entries, head_dim) = (self.new, self.entries(), self.head_dim);
        let mut noise = Noise::new(entries as u64);
        let mut random =
            |heads, tokens| noise.tensor([BATCH, heads, tokens, head_dim], &host()).cast(dtype);
        let queries = random(QUERY_HEADS, new);
        let [keys, values] = [(); 2].map(|()| random(KV_HEADS, entries));
        let expected = self.expected(kind, [&queries, &keys, &values]);

        let visibility = match self.by_position {
            false => Visibility::Causal,
            true => {
                let position = |row, column| self.position(row, column);
                let of_queries = self.old + self.ahead..entries + self.ahead;
                by_position([BATCH, KV_HEADS], of_queries, entries, position, device)
            }
        };
        let [queries, keys, values] = [queries, keys, values].map(|x| x.to_device(device));
        let window = WindowInput {
            queries: queries.clone(),
            keys: keys.clone(),
            visibility: visibility.clone(),
            scoring: scoring(kind, SCALE, device),
        };
        let kernels = Kernels::default();
        let input = AttentionInput {
            queries,
            keys,
            values,
            visibility,
            scoring: window.scoring.clone(),
            column_sums: true,
            column_squares: true,
        };
        let without = AttentionInput { column_sums: false, column_squares: false, ..input.clone() };
        let without = kernels.attention(without).unwrap();
        close(&numbers(without.output), &expected.output, dtype, tolerance(dtype));
        let attended = kernels.attention(input).unwrap();
        assert_eq!(attended.output.dtype(), dtype);
        close(&numbers(attended.output), &expected.output, dtype, tolerance(dtype));
        let close = |found: Vec<f32>, expected: &[f64]| close(&found, expected, DType::F32, 1e-4);
        close(numbers(attended.column_sums.unwrap()), &expected.sums);
        close(numbers(attended.column_squares.unwrap()), &expected.squares);
        close(numbers(kernels.window_weights(window.clone()).unwrap()), &expected.weights);
        let own = (0..BATCH).map(|row| self.own(row)).collect();
        let moments = MomentsInput { window, own, deviations: true, entropies: true };
        let found = kernels.window_moments(moments).unwrap();
        let expected = self.moments(&expected.weights);
        close(numbers(found.sums), &expected.sums);
        close(numbers(found.deviations.unwrap()), &expected.deviations);
        close(numbers(found.entropies.unwrap()), &expected.entropies);

        // Only devices without kernels leave it to tensor operations.
        let attended = if new <= FEW_QUERIES { "decode_attention" } else { "attention" };
        let calls = [(attended, 2), ("window_moments", 1), ("window_weights", 1)];
        let counted: Vec<Fallback> = calls
            .into_iter()
            .filter(|_| !supports(device))
            .map(|(operation, calls)| Fallback {
                operation,
                calls,
                reason: OpError::Device { operation },
            })
            .collect();
        let mut fallbacks = kernels.fallbacks();
        fallbacks.retain(|fallback| !binds_too_few(backend, &fallback.reason));
        assert_eq!(fallbacks, counted, "{}", backend.name);
    }
}

/// One of `kinds`, in those of all cases that run on a backend: a software device compiles each for
/// seconds, all together for longer than a test may take.
fn check(chosen: usize) {
    each_dtype(all_backends(), |backend, dtype| {
        let cases: Vec<_> = kinds()
            .into_iter()
            .enumerate()
            .flat_map(|(index, kind)| cases().map(|case| (index, kind.clone(), case)))
            .collect();
        for (index, kind, case) in backend.some(cases, dtype) {
            if index == chosen {
                println!("{}, {dtype:?}, {kind:?}, {case:?}", backend.name);
                case.check(&kind, dtype, backend);
            }
        }
    });
}

#[test]
fn all_kinds_together() {
    check(0);
}

#[test]
fn softcaps() {
    check(1);
}

#[test]
fn sinks() {
    check(2);
}

#[test]
fn slopes() {
    check(3);
}

#[test]
fn windows() {
    check(4);
}

#[test]
fn windows_of_more_than_a_tile() {
    check(5);
}

#[test]
fn sinks_and_windows_of_one() {
    check(6);
}

#[test]
fn chunks() {
    check(7);
}

#[test]
fn chunks_of_more_than_a_tile() {
    check(8);
}

#[test]
fn chunks_and_the_others_together() {
    check(9);
}

#[test]
fn kinds_that_do_not_fit_are_refused() {
    for backend in kernel_backends() {
        let device = &backend.device;
        let zeros = || Tensor::<4>::zeros([1, 2, 40, 16], device);
        let input = |scoring| AttentionInput {
            queries: zeros(),
            keys: zeros(),
            values: zeros(),
            visibility: Visibility::Causal,
            scoring,
            column_sums: false,
            column_squares: false,
        };
        let three = || Some(floats(&[0.0; 3], [3], device));
        let plain = || Scoring::plain(SCALE);
        for (name, scoring) in [
            ("sinks", Scoring { sinks: three(), ..plain() }),
            ("slopes", Scoring { slopes: three(), ..plain() }),
        ] {
            let input = input(scoring.clone());
            let found = briquette_kernels::attention(&input).unwrap_err();
            assert_eq!(found, RefusedBy("attention").shape(name, &[3], &[2]));
            let AttentionInput { queries, keys, visibility, .. } = input;
            let window = WindowInput { queries, keys, visibility, scoring };
            let found = briquette_kernels::window_weights(window).unwrap_err();
            assert_eq!(found, RefusedBy("window_weights").shape(name, &[3], &[2]));
        }
        let attention = input(Scoring { window: Some(7.into()), ..plain() });
        let patterns = vec![HeadPattern::AShape { first: 1, recent: 4 }; 2];
        let found = sparse_attention(&SparseAttentionInput { attention, patterns }).unwrap_err();
        let expected = OpError::NoKernel { operation: "sparse attention", what: "window" };
        assert_eq!(found, expected);
    }
}
