//! Both sides of a gated feed-forward network and its gate, as models call them: one row and many,
//! sizes that no tile divides, weights as Burn and as checkpoints have them.

use briquette::ops::{OpError, best};
use briquette_ops::{Activation, GatedLinearInput};
use briquette_tests::{
    backends::{Backend, backends, host},
    inputs::round,
};
use burn::tensor::{DType, Tensor};

use super::{
    Case,
    activation::{ACTIVATIONS, activated, steepest},
    case, sums,
};
use crate::common::{RefusedBy, each_case, f64s, numbers, poison, turned};

/// Outputs are two for each channel.
const CASES: [Case; 8] = [
    case(1, 16, 2 * 8, true),
    case(3, 7, 2 * 5, false),
    case(9, 64, 2 * 32, true),
    case(17, 288, 2 * 200, false),
    case(40, 160, 2 * 136, true),
    case(130, 192, 2 * 136, false),
    case(300, 64, 2 * 264, true),
    case(70, 96, 2 * 1000, false),
];

/// A number, and how far off what a device finds may be.
struct Bounded {
    number: f64,
    off: f64,
}

fn drawn(
    case: Case,
    dtype: DType,
    activation: Activation,
    backend: &Backend,
) -> (GatedLinearInput, Vec<Bounded>) {
    let Case { rows, inputs, outputs, .. } = case;
    let (x, weight, bias) = case.operands(rows * 37 + inputs, dtype, &host());
    // Sums of some units, as a model's are.
    let weight = weight.div_scalar((inputs as f64).sqrt());
    let (sums, channels) = (sums(&x, &weight, bias.as_ref()), outputs / 2);
    let of_bias = bias.as_ref().map_or(vec![0.0; outputs], f64s);
    // The numbers of a type are at most so far apart, as a share of them.
    let unit = match dtype {
        DType::BF16 => 2.0_f64.powi(-7),
        DType::F16 => 2.0_f64.powi(-10),
        _ => 2.0_f64.powi(-22),
    };
    let bounded = |row: usize, output: usize| {
        let (sum, size) = sums[row * outputs + output];
        // Tensor operations round before they add the bias, too, and products in f32 on CUDA take
        // eleven bits of an operand.
        let rounded = 2.0 * f64::abs(sum) + of_bias[output].abs();
        let rounds = backend.name == "cuda" && dtype == DType::F32;
        let of_terms = if rounds { 2.0_f64.powi(-10) } else { 4e-6 };
        Bounded { number: round(sum, dtype), off: unit * rounded + of_terms * size }
    };
    let expected = (0..rows * channels).map(|place| {
        let (row, channel) = (place / channels, place % channels);
        let (gate, up) = (bounded(row, channel), bounded(row, channels + channel));
        let active = round(activated(gate.number, activation), dtype);
        let of_gate = steepest(activation) * gate.off;
        let off = of_gate * up.number.abs() + active.abs() * up.off;
        let number = round(active * up.number, dtype);
        let last = 2.0 * unit * number.abs() + if dtype == DType::F16 { 2e-7 } else { 0.0 };
        Bounded { number, off: off + last + 1e-6 * number.abs() }
    });
    let expected = expected.collect();
    let device = &backend.device;
    let (x, weight) = (x.to_device(device), weight.to_device(device));
    let bias = bias.map(|bias| bias.to_device(device));
    (GatedLinearInput { x, weight, bias, activation }, expected)
}

fn check(input: GatedLinearInput, expected: &[Bounded], what: &str) -> Vec<f32> {
    let (rows, channels) = (input.x.dims()[0], input.weight.dims()[1] / 2);
    let dtype = input.x.dtype();
    poison(&input.x.device(), &[expected.len(), expected.len() * 2]);
    let found = best().gated_linear(input).unwrap();
    assert_eq!((found.dims(), found.dtype()), ([rows, channels], dtype), "{what}");
    let found = numbers(found);
    for (index, (found, Bounded { number, off })) in found.iter().zip(expected).enumerate() {
        let own = f64::from(*found);
        assert!(
            (own - number).abs() <= *off,
            "{own} at {index}, expected {number} ± {off}, {what}"
        );
    }
    found
}

#[test]
fn gated_linear_of_cases() {
    each_case(backends(), &CASES, |backend, dtype, &case| {
        for activation in ACTIVATIONS {
            let what = format!("{}, {dtype:?}, {activation:?}, {case:?}", backend.name);
            let (input, expected) = drawn(case, dtype, activation, backend);
            check(input.clone(), &expected, &what);
            let input = GatedLinearInput { weight: turned(&input.weight, 0, 1), ..input };
            let found = check(input.clone(), &expected, &what);
            assert!(found == check(input, &expected, &what), "two runs, {what}");
        }
    });
}

/// Where one launch computes it, a model's operations take that, whichever way weights lie.
#[cfg(cubecl_0_12)]
#[test]
fn one_launch_is_taken() {
    use briquette_kernels::gated_linear;
    for backend in backends().into_iter().filter(|backend| backend.name == "cuda") {
        for dtype in backend.dtypes().into_iter().filter(|&dtype| dtype != DType::F32) {
            let case = case(130, 192, 2 * 136, true);
            for activation in ACTIVATIONS {
                let (input, expected) = drawn(case, dtype, activation, &backend);
                let weight = turned(&input.weight, 0, 1);
                let input = GatedLinearInput { weight, ..input };
                let found = check(input.clone(), &expected, &format!("{dtype:?}, {activation:?}"));
                assert!(found == numbers(gated_linear(input).unwrap()));
            }
        }
    }
}

#[test]
fn sides_of_unequal_size_are_refused() {
    for backend in backends() {
        let ones = |rows, columns| Tensor::<2>::ones([rows, columns], &backend.device);
        let (x, weight) = (ones(2, 4), ones(4, 7));
        let activation = Activation::Silu;
        let odd = GatedLinearInput { x: x.clone(), weight, bias: None, activation };
        let expected = RefusedBy("gated_linear").value("outputs", 7, "an even number");
        assert_eq!(best().gated_linear(odd).unwrap_err(), expected);
        let few = GatedLinearInput { x, weight: ones(3, 8), bias: None, activation };
        assert!(matches!(best().gated_linear(few).unwrap_err(), OpError::Shape { .. }));
    }
}
