//! Weights that are more than a softmax of scaled products, against f64 on every backend: kernels
//! decode them. Prompts and windows of queries they leave to tensor operations, and the calls are
//! counted.

use briquette::ops::{Fallback, OpError, Ops, Visibility};
use briquette_kernels::{FEW_QUERIES, Kernels, supports};
use briquette_ops::{AttentionInput, AttentionOps, WindowInput};
use briquette_tests::{
    backends::{Backend, host},
    inputs::Noise,
    reference::{Kind, attention::weighted_mean},
    session::tolerance,
};
use burn::tensor::{DType, Tensor};

use crate::{
    attention::{by_position, scoring},
    common::{all_backends, close, each_case, numbers, rows},
};

const BATCH: usize = 2;
const QUERY_HEADS: usize = 4;
const KV_HEADS: usize = 2;
const SCALE: f64 = 0.5;

/// Each kind alone and all together, with the name that a kernel refuses them by.
fn kinds() -> [(&'static str, Kind); 6] {
    let (sinks, slopes) = (vec![-1.0, 0.0, 0.5, 3.0], vec![0.5, 0.25, 0.0625, 0.0]);
    let all = Kind { softcap: Some(1.5), sinks, slopes, window: Some(11) };
    let none = Kind::default;
    [
        ("softcap", Kind { softcap: all.softcap, ..none() }),
        ("sinks", Kind { sinks: all.sinks.clone(), ..none() }),
        ("slopes", Kind { slopes: all.slopes.clone(), ..none() }),
        ("window", Kind { window: all.window, ..none() }),
        // A query sees itself alone, and nothing if it is padding.
        ("sinks", Kind { sinks: all.sinks.clone(), window: Some(1), ..none() }),
        ("softcap", all),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Case {
    head_dim: usize,
    old: usize,
    new: usize,
    /// Whether positions say who sees what: with gaps, and padding in the second row of the batch.
    by_position: bool,
}

#[derive(Default)]
struct Expected {
    output: Vec<f64>,
    sums: Vec<f64>,
    squares: Vec<f64>,
    /// `[batch, query_heads, new, entries]`
    weights: Vec<f64>,
}

impl Case {
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

    fn expected(&self, kind: &Kind, all: [&Tensor<4>; 3]) -> Expected {
        let (new, entries) = (self.new, self.old + self.new);
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
                    // Columns of the row's own tokens that the query sees.
                    let end = (self.old + query + 1).saturating_sub(padding);
                    if end > 0 {
                        let query = &queries[(row * QUERY_HEADS + head) * new + query];
                        let asked = (&query[..], positions[end - 1]);
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

    fn check(&self, &(name, ref kind): &(&'static str, Kind), dtype: DType, backend: &Backend) {
        let device = &backend.device;
        let (new, entries, head_dim) = (self.new, self.old + self.new, self.head_dim);
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
                by_position([BATCH, KV_HEADS], self.old..entries, entries, position, device)
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
        close(&numbers(attended.column_sums.unwrap()), &expected.sums, DType::F32, 1e-4);
        close(&numbers(attended.column_squares.unwrap()), &expected.squares, DType::F32, 1e-4);
        let weights = kernels.window_weights(window).unwrap();
        close(&numbers(weights), &expected.weights, DType::F32, 1e-4);

        let counted = |operation, calls, lacks_kernel| {
            let reason = match supports(device) {
                true if lacks_kernel => OpError::NoKernel { operation, what: name },
                true => return None,
                false => OpError::Device { operation },
            };
            Some(Fallback { operation, calls, reason })
        };
        let attended = match new <= FEW_QUERIES {
            true => counted("decode_attention", 2, false),
            false => counted("attention", 2, true),
        };
        let counted = [attended, counted("window_weights", 1, true)];
        let counted: Vec<Fallback> = counted.into_iter().flatten().collect();
        assert_eq!(kernels.fallbacks(), counted, "{}", backend.name);
    }
}

#[test]
fn kinds_of_attention() {
    let mut cases = Vec::new();
    for kind in kinds() {
        for (head_dim, old, new) in
            [(16, 0, 1), (64, 40, 1), (128, 300, 1), (64, 21, 5), (16, 0, 37), (64, 9, 30)]
        {
            for by_position in [false, true] {
                cases.push((kind.clone(), Case { head_dim, old, new, by_position }));
            }
        }
    }
    each_case(all_backends(), &cases, |backend, dtype, (kind, case)| {
        case.check(kind, dtype, backend);
    });
}
