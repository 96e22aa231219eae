//! Attention of many queries, and the column scores that follow from its log-sum-exp: causal and by
//! position, sizes that cross each tile, strided inputs.

use briquette::ops::{AttentionOutput, Reference, Visibility};
use briquette_kernels::{FEW_QUERIES, PromptAttention, attention, column_scores, supports};
use briquette_ops::{AttentionInput, AttentionOps, Scoring};
use briquette_tests::{
    backends::{Backend, host},
    inputs::Noise,
    reference::attention::{weighted_mean, weights},
    session::tolerance,
};
use burn::tensor::{DType, Device, Tensor};

use crate::{
    attention::by_position,
    common::{
        RefusedBy, all_backends, answer, close, each_case, kernel_backends, numbers, poison_as,
        rows, turned,
    },
};

#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Entries before the first query's own.
    old: usize,
    new: usize,
    local: usize,
    /// Whether positions say who sees what, with padding in the second row of the batch.
    by_position: bool,
}

const CAUSAL: Case = Case {
    batch: 1,
    query_heads: 2,
    kv_heads: 1,
    head_dim: 64,
    old: 0,
    new: 33,
    local: 5,
    by_position: false,
};

fn cases() -> Vec<Case> {
    let wide = Case { head_dim: 128, query_heads: 4, kv_heads: 2, ..CAUSAL };
    let odd = Case { head_dim: 10, query_heads: 3, kv_heads: 3, ..CAUSAL };
    vec![
        CAUSAL,
        Case { new: 1, local: 1, ..CAUSAL },
        Case { new: 64, local: 64, ..CAUSAL },
        Case { old: 95, new: 129, local: 0, ..CAUSAL },
        Case { old: 63, new: 2, local: 2, ..CAUSAL },
        Case { batch: 2, old: 1, new: 65, ..wide },
        Case { batch: 2, old: 17, new: 130, by_position: true, ..wide },
        Case { batch: 2, old: 0, new: 31, by_position: true, ..odd },
        Case { old: 40, new: 32, local: 32, ..odd },
        Case { head_dim: 16, old: 3, new: 70, ..CAUSAL },
        Case { head_dim: 48, old: 3, new: 70, ..CAUSAL },
        Case { batch: 2, head_dim: 80, old: 30, new: 70, by_position: true, ..CAUSAL },
        // Blocks one after another in turn, more than there are stages.
        Case { query_heads: 1, old: 130, new: 520, local: 200, ..CAUSAL },
        Case { query_heads: 1, kv_heads: 1, new: 400, local: 100, ..wide },
    ]
}

/// Results in f64.
struct Expected {
    output: Vec<f64>,
    log_sum_exp: Vec<f64>,
    sums: Vec<f64>,
    local_sums: Vec<f64>,
    squares: Vec<f64>,
}

const SCALE: f64 = 0.3;

impl Case {
    fn entries(&self) -> usize {
        self.old + self.new
    }

    /// Padding of a row of the batch, all on the left.
    fn padding(&self, row: usize) -> usize {
        if self.by_position && row == 1 { self.old + self.new / 3 } else { 0 }
    }

    /// The position of a column of a row: what is left after an eviction, with gaps.
    fn position(&self, row: usize, column: usize) -> i64 {
        if column < self.padding(row) { -1 } else { 3 * column as i64 + 2 }
    }

    fn expected(&self, queries: &Tensor<4>, keys: &Tensor<4>, values: &Tensor<4>) -> Expected {
        let Self { batch, query_heads, kv_heads, head_dim, old, new, .. } = *self;
        let entries = self.entries();
        let (queries, keys, values) = (rows(queries), rows(keys), rows(values));
        let mut expected = Expected {
            output: Vec::new(),
            log_sum_exp: Vec::new(),
            sums: vec![0.0; batch * query_heads * entries],
            local_sums: vec![0.0; batch * query_heads * entries],
            squares: vec![0.0; batch * query_heads * entries],
        };
        for row in 0..batch {
            let padding = self.padding(row);
            for head in 0..query_heads {
                let kv_head = row * kv_heads + head * kv_heads / query_heads;
                let (keys, values) = (&keys[kv_head * entries..], &values[kv_head * entries..]);
                let columns = (row * query_heads + head) * entries;
                for query in 0..new {
                    if old + query < padding {
                        expected.output.extend(std::iter::repeat_n(0.0, head_dim));
                        expected.log_sum_exp.push(f64::from(1e30_f32));
                        continue;
                    }
                    let seen = padding..old + query + 1;
                    let q = &queries[(row * query_heads + head) * new + query];
                    let keys = &keys[seen.clone()];
                    let weights = weights(q, keys, SCALE);
                    let product = |key: &Vec<f64>| -> f64 {
                        q.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() * SCALE
                    };
                    expected.log_sum_exp.push(product(&keys[0]) - weights[0].ln());
                    for (weight, column) in weights.iter().zip(seen.clone()) {
                        expected.sums[columns + column] += weight;
                        expected.squares[columns + column] += weight * weight;
                        if query >= new - self.local {
                            expected.local_sums[columns + column] += weight;
                        }
                    }
                    expected.output.extend(weighted_mean(&weights, &values[seen]));
                }
            }
        }
        expected
    }

    fn visibility(&self, device: &Device) -> Visibility {
        if !self.by_position {
            return Visibility::Causal;
        }
        let (lists, entries) = ([self.batch, self.kv_heads], self.entries());
        let position = |row, column| self.position(row, column);
        by_position(lists, self.old..entries, entries, position, device)
    }

    /// Compares an output, to the rounding of its type.
    fn close_output(&self, found: &Tensor<4>, expected: &Expected, dtype: DType) {
        let Self { batch, query_heads, head_dim, new, .. } = *self;
        assert_eq!(found.dims(), [batch, query_heads, new, head_dim]);
        assert_eq!(found.dtype(), dtype);
        close(&numbers(found.clone()), &expected.output, dtype, tolerance(dtype));
    }

    fn check(&self, dtype: DType, backend: &Backend) {
        let Self { batch, query_heads, kv_heads, head_dim, new, local, .. } = *self;
        let device = &backend.device;
        let entries = self.entries();
        let host = host();
        let mut noise = Noise::new((head_dim + entries) as u64);
        let mut random = |shape| noise.tensor(shape, &host).cast(dtype);
        let queries = random([batch, query_heads, new, head_dim]);
        let [keys, values] = [(); 2].map(|()| random([batch, kv_heads, entries, head_dim]));
        let expected = self.expected(&queries, &keys, &values);

        // Queries are the transpose of another tensor, keys and values parts of a longer one.
        let to = |x: &Tensor<4>| x.clone().to_device(device);
        let queries = turned(&to(&queries), 1, 2);
        let long = |x: &Tensor<4>| {
            let more = Tensor::full([batch, kv_heads, 5, head_dim], f32::NAN, (device, dtype));
            Tensor::cat(vec![to(x), more], 2).narrow(2, 0, entries)
        };
        poison_as(dtype, device, &[expected.output.len()]);
        let input = AttentionInput {
            queries,
            keys: long(&keys),
            values: long(&values),
            visibility: self.visibility(device),
            scoring: Scoring::plain(SCALE),
            column_sums: true,
            column_squares: true,
        };
        let operation = if new <= FEW_QUERIES { "decode_attention" } else { "attention" };
        let found = answer(backend, operation, |kernels| kernels.attention(input.clone()));
        self.close_attention(found, &expected, dtype);
        if !supports(device) {
            return self.close_attention(Reference.attention(input).unwrap(), &expected, dtype);
        }

        let PromptAttention { output, log_sum_exp } = attention(&input).unwrap();
        let again = attention(&input).unwrap();
        assert_eq!(output.to_data(), again.output.to_data(), "{self:?} twice");
        self.close_output(&output, &expected, dtype);
        close_columns(&log_sum_exp, &expected.log_sum_exp);

        let found = column_scores(&input, log_sum_exp.clone(), local).unwrap();
        close_columns(&found.sums, &expected.sums);
        close_columns(&found.squares.clone().unwrap(), &expected.squares);
        assert_eq!(found.local_sums.is_some(), local > 0);
        if let Some(sums) = &found.local_sums {
            close_columns(sums, &expected.local_sums);
        }
        let input = AttentionInput { column_squares: false, ..input };
        let less = column_scores(&input, log_sum_exp, 0).unwrap();
        assert_eq!(less.sums.to_data(), found.sums.to_data(), "{self:?} with less wanted");
        assert!(less.local_sums.is_none() && less.squares.is_none());
    }

    fn close_attention(&self, found: AttentionOutput, expected: &Expected, dtype: DType) {
        self.close_output(&found.output, expected, dtype);
        close_columns(&found.column_sums.unwrap(), &expected.sums);
        close_columns(&found.column_squares.unwrap(), &expected.squares);
    }
}

#[track_caller]
fn close_columns(found: &Tensor<3>, expected: &[f64]) {
    close(&numbers(found.clone()), expected, DType::F32, 1e-4);
}

#[test]
fn attention_and_column_scores() {
    each_case(all_backends(), &cases(), |backend, dtype, case| case.check(dtype, backend));
}

#[test]
fn calls_that_do_not_fit_are_refused() {
    let zeros = |shape: [usize; 4], device: &Device| Tensor::<4>::zeros(shape, device);
    let input = |queries, keys: [usize; 4], device: &Device| AttentionInput {
        queries: zeros(queries, device),
        keys: zeros(keys, device),
        values: zeros(keys, device),
        visibility: Visibility::Causal,
        scoring: Scoring::plain(1.0),
        column_sums: true,
        column_squares: false,
    };
    let by = RefusedBy("attention");
    let on_host = attention(&input([1, 1, 1, 8], [1, 1, 1, 8], &host()));
    assert_eq!(on_host.unwrap_err(), by.device());
    for backend in kernel_backends() {
        let device = &backend.device;
        let refuse = |queries, keys| attention(&input(queries, keys, device)).unwrap_err();
        let expected = by.shape("keys", &[1, 1, 2, 16], &[1, 1, 2, 8]);
        assert_eq!(refuse([1, 1, 2, 8], [1, 1, 2, 16]), expected);
        let expected = by.value("query_heads", 3, "a multiple of 2");
        assert_eq!(refuse([1, 3, 2, 8], [1, 2, 2, 8]), expected);
        let expected = by.value("the number of queries", 3, "1 to 2, the entries");
        assert_eq!(refuse([1, 1, 3, 8], [1, 1, 2, 8]), expected);
        let log_sum_exp = Tensor::zeros([1, 1, 2], device);
        let local = column_scores(&input([1, 1, 2, 8], [1, 1, 2, 8], device), log_sum_exp, 3);
        let expected = RefusedBy("column_scores").value("local", 3, "at most 2, the queries");
        assert_eq!(local.unwrap_err(), expected);
    }
}
