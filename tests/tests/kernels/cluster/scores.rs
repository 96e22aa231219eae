//! Scores and weights of EMS and the threshold of D2O, beside plain loops in
//! f64.

use briquette::{
    ops::Reference,
    score::{Pool, PoolKind},
};
use briquette_kernels::{ema_weights, global_local, row_weights};
use briquette_ops::{ClusterOps, EmaInput, EmaOutput, GlobalLocalInput, MergeOps, RowWeightsInput};
use briquette_tests::backends::host;
use burn::tensor::{DType, Device, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::behind;
use crate::common::{
    RefusedBy, all_backends, answer, close, floats, integers, kernel_backends, numbers, poison,
};

/// Columns of rows: `[batch, heads, columns]`, and rows.
const TABLES: [([usize; 3], usize); 4] =
    [([1, 1, 1], 1), ([2, 3, 40], 12), ([1, 2, 256], 257), ([2, 1, 700], 300)];

/// Inputs of [`row_weights`], and the expected output.
fn table(dims: [usize; 3], height: usize, device: &Device) -> (RowWeightsInput, Vec<f64>) {
    let mut rng = ChaCha8Rng::seed_from_u64(height as u64);
    let [batch, heads, columns] = dims;
    let count = batch * heads * columns;
    let rows: Vec<i64> = (0..count).map(|_| rng.random_range(0..height as i64)).collect();
    let positions: Vec<i64> = (0..count).map(|_| rng.random_range(-1..4)).collect();
    // Some are below the bounds, some above, and what holds nothing may be NaN.
    let score = |&position: &i64| match position {
        -1 => f32::NAN,
        0 => 0.0,
        1 => 1e9,
        _ => rng.random_range(0.0..5.0),
    };
    let scores: Vec<f32> = positions.iter().map(score).collect();
    let (least, most) = (1e-3_f32, 40.0_f32);
    let mut expected = vec![0.0; batch * heads * height];
    for (place, &row) in rows.iter().enumerate() {
        if positions[place] >= 0 {
            let row = place / columns * height + row as usize;
            expected[row] += f64::from(scores[place].clamp(least, most));
        }
    }
    let call = RowWeightsInput {
        rows: integers(&rows, dims, device),
        positions: integers(&positions, dims, device),
        scores: floats(&scores, dims, device),
        height,
        bounds: (least, most),
    };
    (call, expected)
}

#[test]
fn row_weights_of_cases() {
    for backend in all_backends() {
        for (dims, height) in TABLES {
            let (call, expected) = table(dims, height, &backend.device);
            poison(&backend.device, &[expected.len()]);
            let elsewhere = RowWeightsInput {
                rows: behind(&call.rows, 1),
                positions: behind(&call.positions, 1),
                scores: behind(&call.scores, 1),
                ..call.clone()
            };
            let run = |call| answer(&backend, "row_weights", |it| it.row_weights(call));
            let found = [run(call.clone()), run(elsewhere)];
            for found in found.into_iter().chain([Reference.row_weights(call).unwrap()]) {
                assert_eq!(found.dims(), [dims[0], dims[1], height]);
                close(&numbers(found), &expected, DType::F32, 1e-6);
            }
        }
    }
}

/// Heads of statistics and of scores, columns, window, pool.
const SCORES: [([usize; 4], usize, Option<Pool>); 7] = [
    ([1, 1, 1, 1], 1, None),
    ([1, 2, 2, 5], 8, None),
    ([2, 4, 2, 37], 4, None),
    ([1, 2, 2, 64], 8, Some(Pool { kind: PoolKind::Avg, kernel: 7 })),
    ([2, 6, 2, 300], 32, Some(Pool { kind: PoolKind::Max, kernel: 5 })),
    ([1, 3, 3, 600], 0, Some(Pool { kind: PoolKind::Avg, kernel: 3 })),
    // Pooled over more than there is.
    ([1, 1, 1, 4], 1, Some(Pool { kind: PoolKind::Avg, kernel: 11 })),
];

/// Inputs of [`global_local`], and the expected output. The first head has received nothing.
fn statistics(
    case: [usize; 4],
    window: usize,
    pool: Option<Pool>,
    device: &Device,
) -> (GlobalLocalInput, Vec<f64>) {
    let [batch, heads, kv_heads, columns] = case;
    let mut rng = ChaCha8Rng::seed_from_u64(columns as u64);
    let group = heads / kv_heads;
    let mut track = || -> Vec<f32> {
        (0..batch * heads * columns)
            .map(|place| if place < group * columns { 0.0 } else { rng.random_range(0.0..3.0) })
            .collect()
    };
    let (sums, past, current) = (track(), track(), track());
    let mean = |track: &[f32], head: usize, column: usize| -> f64 {
        let of_group = (0..group).map(|one| track[(head * group + one) * columns + column]);
        of_group.map(f64::from).sum::<f64>() / group as f64
    };
    let outside = columns.saturating_sub(window);
    let (kernel, most) = pool.map_or((1, false), |pool| (pool.kernel, pool.kind == PoolKind::Max));
    let mut expected = Vec::new();
    for head in 0..batch * kv_heads {
        let global = |column| mean(&sums, head, column);
        let local = |column| mean(&past, head, column) + mean(&current, head, column);
        let all: f64 = (0..columns).map(global).sum();
        let windows: f64 = (0..columns).map(local).sum();
        let level = if all == 0.0 { 0.0 } else { windows / all };
        let score = |column: usize| match column < outside {
            true => (global(column) * level).max(local(column)),
            false => 0.0,
        };
        expected.extend((0..columns).map(|column| {
            let first = column.saturating_sub(kernel / 2);
            let near = (first..(column + kernel / 2 + 1).min(columns)).map(score);
            match most {
                true => near.fold(0.0, f64::max),
                false => near.sum::<f64>() / kernel as f64,
            }
        }));
    }
    let dims = [batch, heads, columns];
    let call = GlobalLocalInput {
        sums: floats(&sums, dims, device),
        past: floats(&past, dims, device),
        current: floats(&current, dims, device),
        kv_heads,
        window,
        pool,
    };
    (call, expected)
}

#[test]
fn global_local_of_cases() {
    for backend in all_backends() {
        for (case, window, pool) in SCORES {
            let (call, expected) = statistics(case, window, pool, &backend.device);
            poison(&backend.device, &[expected.len()]);
            let elsewhere = GlobalLocalInput {
                sums: behind(&call.sums, 1),
                past: behind(&call.past, 1),
                ..call.clone()
            };
            let run = |call| answer(&backend, "global_local", |it| it.global_local(call));
            for call in [call.clone(), elsewhere] {
                let found = run(call.clone());
                assert_eq!(found.dims(), [case[0], case[2], case[3]]);
                let again = run(call);
                assert_eq!(found.to_data(), again.to_data());
                close(&numbers(found), &expected, DType::F32, 1e-5);
            }
            let found = Reference.global_local(call).unwrap();
            close(&numbers(found), &expected, DType::F32, 1e-5);
        }
    }
}

/// Similarities of what is evicted, the thresholds before, and what weights and thresholds then
/// are.
struct Evicted {
    dims: [usize; 3],
    similarity: Vec<f32>,
    counts: &'static [usize],
    before: Option<&'static [f32]>,
    weights: Vec<f64>,
    threshold: Vec<f64>,
}

const BETA: f64 = 0.7;

/// Batch rows, heads, columns, what each head evicts, and the thresholds before.
type Eviction = ([usize; 3], &'static [usize], Option<&'static [f32]>);

const EVICTIONS: [Eviction; 5] = [
    ([1, 1, 1], &[1], None),
    ([2, 2, 5], &[5, 5, 5, 5], Some(&[0.25, -4.0])),
    // A row that evicts nothing, and a head that does not.
    ([3, 2, 9], &[9, 0, 0, 0, 3, 4], Some(&[0.1, 0.2, -4.0])),
    ([2, 1, 4], &[0, 4], None),
    ([1, 3, 700], &[700, 257, 1], Some(&[0.05])),
];

fn evicted(([batch, heads, columns], counts, before): Eviction) -> Evicted {
    let mut rng = ChaCha8Rng::seed_from_u64(columns as u64);
    let mut similarity: Vec<f32> =
        (0..batch * heads * columns).map(|_| rng.random_range(-1.0..1.0)).collect();
    let (mut weights, mut threshold) = (Vec::new(), Vec::new());
    for row in 0..batch {
        let of_row = &counts[row * heads..][..heads];
        let (mut total, mut number) = (0.0, 0);
        for (head, &count) in of_row.iter().enumerate() {
            let first = (row * heads + head) * columns;
            let own = &mut similarity[first..first + columns];
            // What stands at padding counts nothing, whatever it is.
            own[..columns - count].fill(f32::NAN);
            total += own[columns - count..].iter().map(|&x| f64::from(x)).sum::<f64>();
            number += count;
        }
        let mean = total / number.max(1) as f64;
        let held = before.map_or(-4.0, |before| f64::from(before[row]));
        let limit = match number {
            0 => held,
            _ if held < -2.0 => mean,
            _ => BETA * mean + (1.0 - BETA) * held,
        };
        threshold.push(limit);
        for (head, &count) in of_row.iter().enumerate() {
            let own = &similarity[(row * heads + head) * columns..][..columns];
            weights.extend(own.iter().enumerate().map(|(column, &like)| {
                let like = f64::from(like);
                if column >= columns - count && like >= limit { like.exp() } else { 0.0 }
            }));
        }
    }
    Evicted { dims: [batch, heads, columns], similarity, counts, before, weights, threshold }
}

impl Evicted {
    fn input(&self, similarity: Tensor<3>) -> EmaInput<'static> {
        let device = similarity.device();
        let before = self.before.map(|before| floats(before, [before.len(), 1], &device));
        EmaInput { similarity, counts: self.counts, before, beta: BETA }
    }

    fn check(&self, EmaOutput { weights, threshold }: EmaOutput) {
        close(&numbers(threshold), &self.threshold, DType::F32, 1e-6);
        // A single one is as like as the mean is: the same sum, the same number.
        close(&numbers(weights), &self.weights, DType::F32, 1e-6);
    }
}

#[test]
fn ema_weights_of_cases() {
    for backend in kernel_backends() {
        for drawn in EVICTIONS.map(evicted) {
            poison(&backend.device, &[drawn.weights.len(), drawn.threshold.len()]);
            let similarity = floats(&drawn.similarity, drawn.dims, &backend.device);
            for similarity in [similarity.clone(), behind(&similarity, 1)] {
                let input = drawn.input(similarity);
                drawn.check(answer(&backend, "ema_weights", |it| it.ema_weights(input)));
            }
        }
    }
}

#[test]
fn ema_weights_by_tensor_operations() {
    for backend in all_backends() {
        for mut drawn in EVICTIONS.map(evicted) {
            // Tensor operations multiply what is at padding by zero.
            drawn.similarity.iter_mut().for_each(|x| *x = if x.is_nan() { 0.5 } else { *x });
            let input = drawn.input(floats(&drawn.similarity, drawn.dims, &backend.device));
            drawn.check(answer(&backend, "ema_weights", |it| it.ema_weights(input.clone())));
            drawn.check(Reference.ema_weights(input).unwrap());
        }
    }
}

#[test]
fn scores_that_do_not_fit_are_refused() {
    let by = [RefusedBy("row_weights"), RefusedBy("global_local"), RefusedBy("ema_weights")];
    let on_host = table([1, 1, 4], 2, &host()).0;
    assert_eq!(row_weights(on_host).unwrap_err(), by[0].device());
    for backend in kernel_backends() {
        let device = &backend.device;
        let good = table([1, 1, 4], 2, device).0;
        let none = RowWeightsInput { height: 0, ..good.clone() };
        assert_eq!(row_weights(none).unwrap_err(), by[0].value("rows", 0, "1 or more"));
        let long = [1, 1, 8193];
        let many = RowWeightsInput {
            rows: Tensor::zeros(long, device),
            positions: Tensor::zeros(long, device),
            scores: Tensor::zeros(long, (device, DType::F32)),
            ..good
        };
        let expected = by[0].size("the number of columns", 8193, 8192);
        assert_eq!(row_weights(many).unwrap_err(), expected);

        let good = statistics([1, 4, 2, 8], 2, None, device).0;
        let even = GlobalLocalInput { pool: Some(Pool::avg(4)), ..good.clone() };
        assert_eq!(global_local(even).unwrap_err(), by[1].value("pool", 4, "odd"));
        let heads = GlobalLocalInput { kv_heads: 3, ..good };
        let expected = by[1].value("heads", 4, "a multiple of 3");
        assert_eq!(global_local(heads).unwrap_err(), expected);

        let similarity = Tensor::<3>::zeros([1, 2, 3], (device, DType::F32));
        let refused = |counts| {
            let similarity = similarity.clone();
            ema_weights(EmaInput { similarity, counts, before: None, beta: BETA }).unwrap_err()
        };
        assert_eq!(refused(&[1, 4]), by[2].value("counts", 4, "at most 3"));
        assert_eq!(refused(&[1]), by[2].value("the length of counts", 1, "2"));
    }
}
