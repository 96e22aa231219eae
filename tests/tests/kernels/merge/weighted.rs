//! Few and many rows, none that go anywhere, rows of no length and no weight, as directions and as
//! they are.

use briquette::ops::{MergeInput, Reference};
use briquette_kernels::{Kernels, merge};
use briquette_ops::MergeOps;
use briquette_tests::{backends::host, inputs::Noise, session::tolerance};
use burn::tensor::{DType, Device, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{
    RefusedBy, all_backends, answer, close, each_dtype, floats, integers, kernel_backends, numbers,
    poison, rows, turned,
};

#[derive(Clone, Copy, Debug)]
struct Case {
    lists: [usize; 2],
    rows: usize,
    others: usize,
    channels: usize,
    directions: bool,
}

const CASES: [Case; 7] = [
    Case { lists: [1, 1], rows: 1, others: 1, channels: 1, directions: false },
    Case { lists: [2, 3], rows: 5, others: 2, channels: 16, directions: true },
    Case { lists: [1, 2], rows: 3, others: 64, channels: 63, directions: true },
    Case { lists: [1, 2], rows: 70, others: 65, channels: 64, directions: false },
    Case { lists: [2, 1], rows: 9, others: 200, channels: 128, directions: true },
    Case { lists: [1, 1], rows: 4, others: 1100, channels: 65, directions: false },
    Case { lists: [1, 1], rows: 2, others: 3, channels: 1024, directions: true },
];

/// A call and what comes of it.
struct Drawn {
    input: MergeInput,
    keys: Vec<f64>,
    values: Vec<f64>,
}

fn unit(row: &[f64]) -> Vec<f64> {
    let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
    row.iter().map(|x| if length == 0.0 { 0.0 } else { x / length }).collect()
}

impl Case {
    fn draw(self, dtype: DType, device: &Device) -> Drawn {
        let Self { lists: [batch, heads], rows: count, others, channels, directions } = self;
        let mut noise = Noise::new((count * others) as u64);
        let mut rng = ChaCha8Rng::seed_from_u64((count + others) as u64);
        let host = host();
        let lists = batch * heads;
        let mut random = |rows| noise.tensor([batch, heads, rows, channels], &host).cast(dtype);
        let [mut keys, values] = [(); 2].map(|()| random(count));
        let [other_keys, other_values] = [(); 2].map(|()| random(others));
        if count > 2 {
            // A key of no length.
            keys = keys.slice_fill([0..batch, 0..heads, 1..2, 0..channels], 0.0);
        }
        let mut weights = |number: usize| -> Vec<f32> {
            (0..number).map(|_| f32::from(rng.random_range(0..5_u8)) / 4.0).collect()
        };
        let (own, weight) = (weights(lists * count), weights(lists * others));
        // Behind the last is nowhere.
        let slot: Vec<usize> =
            (0..lists * others).map(|_| rng.random_range(0..=count + count / 4)).collect();

        let [own_keys, own_values, from_keys, from_values] =
            [&keys, &values, &other_keys, &other_values].map(rows);
        let (mut merged_keys, mut merged_values) = (Vec::new(), Vec::new());
        for row in 0..lists * count {
            let list = row / count;
            let direction = |x: &[f64]| if directions { unit(x) } else { x.to_vec() };
            let mut total = f64::from(own[row]);
            let mut key: Vec<f64> = direction(&own_keys[row]).iter().map(|x| x * total).collect();
            let mut value: Vec<f64> = own_values[row].iter().map(|x| x * total).collect();
            let to = row % count;
            let goes = |other: &usize| slot[*other] == to && weight[*other] > 0.0;
            let come: Vec<usize> = (list * others..(list + 1) * others).filter(goes).collect();
            if come.is_empty() {
                merged_keys.extend(direction(&own_keys[row]));
                merged_values.extend_from_slice(&own_values[row]);
                continue;
            }
            for other in come {
                let weight = f64::from(weight[other]);
                total += weight;
                let from = direction(&from_keys[other]);
                key.iter_mut().zip(from).for_each(|(sum, x)| *sum += weight * x);
                let from = &from_values[other];
                value.iter_mut().zip(from).for_each(|(sum, x)| *sum += weight * x);
            }
            let mean = |x: &f64| x / total;
            merged_keys.extend(if directions {
                unit(&key)
            } else {
                key.iter().map(mean).collect()
            });
            merged_values.extend(value.iter().map(mean));
        }

        let to = |x: Tensor<4>| x.to_device(device);
        let list = |x: &[f32], rows: usize| floats(x, [batch, heads, rows], device);
        let input = MergeInput {
            keys: to(keys),
            values: to(values),
            own: list(&own, count),
            other_keys: to(other_keys),
            other_values: to(other_values),
            weights: list(&weight, others),
            slot: integers(&slot, [batch, heads, others], device),
            directions,
        };
        Drawn { input, keys: merged_keys, values: merged_values }
    }
}

fn check(found: (Tensor<4>, Tensor<4>), drawn: &Drawn, dtype: DType) {
    for (found, expected) in [(found.0, &drawn.keys), (found.1, &drawn.values)] {
        assert_eq!(found.dtype(), dtype);
        close(&numbers(found), expected, dtype, tolerance(dtype));
    }
}

#[test]
fn merge_of_cases() {
    each_dtype(all_backends(), |backend, dtype| {
        for case in CASES {
            println!("{}, {dtype:?}, {case:?}", backend.name);
            let drawn = case.draw(dtype, &backend.device);
            poison(&backend.device, &[drawn.keys.len(); 2]);
            // Of many others rows are sorted first.
            let operation = if case.others > 1024 { "accumulate" } else { "merge" };
            let merge =
                |input| answer(backend, operation, |kernels: &Kernels| kernels.merge(input));
            let held = || [&drawn.input.keys, &drawn.input.values].map(|x| numbers(x.clone()));
            let before = held();
            check(merge(drawn.input.clone()), &drawn, dtype);
            assert_eq!(before, held(), "a shared row was changed");
            // Buffers that nobody else has.
            let owned = |x: &Tensor<4>| x.clone().add_scalar(0.0);
            let in_place = MergeInput {
                keys: owned(&drawn.input.keys),
                values: owned(&drawn.input.values),
                ..drawn.input.clone()
            };
            check(merge(in_place), &drawn, dtype);
            let elsewhere = MergeInput {
                keys: turned(&drawn.input.keys, 1, 3),
                other_values: turned(&drawn.input.other_values, 1, 3),
                ..drawn.input.clone()
            };
            check(merge(elsewhere), &drawn, dtype);
        }
    });
}

#[test]
fn merge_by_tensor_operations() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for case in CASES {
            let drawn = case.draw(dtype, &host());
            check(Reference.merge(drawn.input.clone()).unwrap(), &drawn, dtype);
        }
    }
}

#[test]
fn merge_refuses() {
    let by = RefusedBy("merge");
    let call = |device: &Device| CASES[1].draw(DType::F32, device).input;
    assert_eq!(merge(call(&host())).unwrap_err(), by.device());
    for backend in kernel_backends() {
        let good = call(&backend.device);
        let refused = |change: &dyn Fn(&mut MergeInput)| {
            let mut input = good.clone();
            change(&mut input);
            merge(input).unwrap_err()
        };
        let error = refused(&|input| input.own = input.own.clone().narrow(2, 0, 4));
        assert_eq!(error, by.shape("own", &[2, 3, 4], &[2, 3, 5]));
        let error = refused(&|input| {
            input.other_keys = Tensor::zeros([2, 3, 0, 16], &backend.device);
        });
        assert_eq!(error, by.value("others", 0, "1 or more"));
    }
}
