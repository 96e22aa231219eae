//! Operations between the products of a layer: sizes that no vector divides, rows within others,
//! halves of one product.

use briquette::ops::OpError;
use briquette_kernels::{gated, rms_norm};
use briquette_ops::{Activation, GatedInput, RmsNormInput};
use briquette_tests::{
    backends::host,
    inputs::{Noise, round},
};
use burn::tensor::{DType, Device, Tensor};

use super::{
    accelerators,
    activation::{ACTIVATIONS, activated},
};
use crate::common::{
    RefusedBy, close, each_dtype, f64s, noise_matrix, numbers, poison, turned, within,
};

fn norm_input(rows: usize, channels: usize, dtype: DType, device: &Device) -> RmsNormInput {
    let mut noise = Noise::new((rows * 31 + channels) as u64);
    let mut tensor = |rows| noise_matrix(&mut noise, [rows, channels], dtype, device);
    let (x, residual) = (tensor(rows), Some(tensor(rows)));
    let weight = tensor(1).reshape([channels]);
    RmsNormInput { x, residual, weight, epsilon: 1e-5, weight_less_one: false }
}

/// Sum and normalised rows, by loops over f64, rounded where the operation rounds.
fn norm_by_hand(input: &RmsNormInput, dtype: DType) -> [Vec<f64>; 2] {
    let channels = input.x.dims()[1];
    let weight = f64s(&input.weight);
    let mut sum = f64s(&input.x);
    if let Some(residual) = &input.residual {
        for (sum, added) in sum.iter_mut().zip(f64s(residual)) {
            *sum = round(*sum + added, dtype);
        }
    }
    let mut normal = Vec::with_capacity(sum.len());
    for row in sum.chunks(channels) {
        let square = row.iter().map(|x| x * x).sum::<f64>() / channels as f64;
        let root = (square + input.epsilon).sqrt();
        normal.extend(row.iter().zip(&weight).map(|(x, weight)| match input.weight_less_one {
            true => round((weight + 1.0) * x / root, dtype),
            false => round(weight * round(x / root, dtype), dtype),
        }));
    }
    [sum, normal]
}

/// The size of one unit in the last place, for numbers up to a few units.
fn slack(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 2e-6,
        DType::F16 => 1e-2,
        _ => 8e-2,
    }
}

#[test]
fn rms_norm_of_cases() {
    each_dtype(accelerators(), |backend, dtype| {
        for (rows, channels) in [(1, 1), (3, 7), (2, 64), (5, 1028), (70, 300), (1, 4096)] {
            println!("{}, {dtype:?}, {rows} rows of {channels}", backend.name);
            let plain = norm_input(rows, channels, dtype, &backend.device);
            let alone = RmsNormInput { residual: None, ..plain.clone() };
            let gemma = RmsNormInput { weight_less_one: true, ..plain.clone() };
            let slack = slack(dtype);
            for (input, slack) in [(plain, slack), (alone, slack), (gemma, 2.0 * slack)] {
                let [sum, normal] = norm_by_hand(&input, dtype);
                poison(&backend.device, &[rows * channels, rows * channels]);
                let found = rms_norm(input.clone()).unwrap();
                assert_eq!([found.sum.dims(), found.normal.dims()], [[rows, channels]; 2]);
                assert_eq!([found.sum.dtype(), found.normal.dtype()], [dtype; 2]);
                close(&numbers(found.sum), &sum, dtype, slack);
                let first = numbers(found.normal);
                close(&first, &normal, dtype, slack);
                let again = numbers(rms_norm(input.clone()).unwrap().normal);
                assert!(first == again, "two runs give the same bits");
                let lain = RmsNormInput {
                    x: within(&input.x),
                    residual: input.residual.as_ref().map(|residual| turned(residual, 0, 1)),
                    ..input
                };
                close(&numbers(rms_norm(lain).unwrap().normal), &normal, dtype, slack);
            }
        }
    });
}

#[test]
fn gated_of_cases() {
    each_dtype(accelerators(), |backend, dtype| {
        for (rows, channels) in [(1, 1), (3, 7), (2, 64), (33, 1028)] {
            let mut noise = Noise::new((rows + channels) as u64);
            let both = noise_matrix(&mut noise, [rows, 2 * channels], dtype, &backend.device);
            let gate = both.clone().narrow(1, 0, channels);
            let up = both.narrow(1, channels, channels);
            for activation in ACTIVATIONS {
                println!("{}, {dtype:?}, {rows} of {channels}, {activation:?}", backend.name);
                let active =
                    f64s(&gate).into_iter().map(|x| round(activated(x, activation), dtype));
                let expected: Vec<f64> =
                    active.zip(f64s(&up)).map(|(a, b)| round(a * b, dtype)).collect();
                poison(&backend.device, &[rows * channels]);
                let input = GatedInput { gate: gate.clone(), up: up.clone(), activation };
                let found = gated(input.clone()).unwrap();
                assert_eq!((found.dims(), found.dtype()), ([rows, channels], dtype));
                let found = numbers(found);
                close(&found, &expected, dtype, slack(dtype));
                let lain = GatedInput { gate: turned(&gate, 0, 1), ..input };
                assert!(found == numbers(gated(lain).unwrap()), "as it lies");
            }
        }
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    let by = RefusedBy("rms_norm");
    for backend in accelerators() {
        let good = norm_input(2, 4, DType::F32, &backend.device);
        let refuses = |change: &dyn Fn(&mut RmsNormInput), expected: OpError| {
            let mut input = good.clone();
            change(&mut input);
            assert_eq!(rms_norm(input).unwrap_err(), expected);
        };
        let narrow = |x: &Tensor<2>| x.clone().narrow(1, 0, 3);
        let expected = by.shape("residual", &[2, 3], &[2, 4]);
        refuses(&|it| it.residual = it.residual.as_ref().map(narrow), expected);
        let expected = by.shape("weight", &[1], &[4]);
        refuses(&|it| it.weight = it.weight.clone().narrow(0, 0, 1), expected);
        let expected = by.value("rows", 0, "1 or more");
        refuses(&|it| it.x = Tensor::zeros([0, 4], (&backend.device, DType::F32)), expected);
        let (gate, activation) = (good.x.clone(), Activation::Silu);
        let up = narrow(&gate);
        let error = gated(GatedInput { gate, up, activation }).unwrap_err();
        assert_eq!(error, RefusedBy("gated").shape("up", &[2, 3], &[2, 4]));
    }
    let here = norm_input(2, 4, DType::F32, &host());
    assert_eq!(rms_norm(here).unwrap_err(), by.device());
}
