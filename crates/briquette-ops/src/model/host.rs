//! Norms and gates on the host, a row in one pass: for the few numbers of one token a tensor
//! operation costs more than its arithmetic.

use burn::tensor::{DType, Device, Tensor, TensorData};

use super::{
    gated::{Activation, GatedInput},
    rms_norm::{RmsNormInput, RmsNormOutput},
};
use crate::{
    error::Result,
    host::{HostInput, computes, exp, rows::write},
};

/// Numbers that are added up beside each other.
const LANES: usize = 8;

/// The normalised rows, where the host computes in f32; `None` elsewhere.
pub(super) fn rms_norm(input: &RmsNormInput) -> Result<Option<RmsNormOutput>> {
    const INPUT: HostInput = HostInput("rms_norm");
    let RmsNormInput { x, residual, weight, epsilon, weight_less_one } = input;
    let is_f32 = |x: &Tensor<2>| x.dtype() == DType::F32;
    if !computes(x) || !residual.iter().all(is_f32) || weight.dtype() != DType::F32 {
        return Ok(None);
    }
    let (device, dims) = (x.device(), x.dims());
    INPUT.shape("weight", weight.dims(), [dims[1]])?;
    let sum = match residual {
        Some(residual) => {
            INPUT.shape("residual", residual.dims(), dims)?;
            let (x, residual) = (INPUT.view::<f32, _>(x)?, INPUT.view::<f32, _>(residual)?);
            let sum = x.iter().zip(&*residual).map(|(x, residual)| x + residual);
            tensor(sum.collect(), dims, &device)
        }
        None => x.clone(),
    };
    let (numbers, weight) = (INPUT.view::<f32, _>(&sum)?, INPUT.view::<f32, _>(weight)?);
    let more = if *weight_less_one { 1.0 } else { 0.0 };
    let normal = write(dims[0], dims[1], |row, normal| {
        let numbers = &numbers[row * dims[1]..][..dims[1]];
        let scale = (mean_square(numbers) + *epsilon as f32).sqrt().recip();
        for ((normal, number), weight) in normal.iter_mut().zip(numbers).zip(&*weight) {
            *normal = (weight + more) * (number * scale);
        }
    });
    Ok(Some(RmsNormOutput { sum, normal: tensor(normal, dims, &device) }))
}

/// One side times the activation of the other, where the host computes in f32; `None` elsewhere,
/// and for GELU by the error function.
pub(super) fn gated(input: &GatedInput) -> Result<Option<Tensor<2>>> {
    const INPUT: HostInput = HostInput("gated");
    let GatedInput { gate, up, activation } = input;
    if !computes(gate) || up.dtype() != DType::F32 || *activation == Activation::Gelu {
        return Ok(None);
    }
    let (device, dims) = (gate.device(), gate.dims());
    INPUT.shape("up", up.dims(), dims)?;
    let (gate, up) = (INPUT.view::<f32, _>(gate)?, INPUT.view::<f32, _>(up)?);
    let is_silu = *activation == Activation::Silu;
    let found = write(dims[0], dims[1], |row, found| {
        let of_row = row * dims[1]..(row + 1) * dims[1];
        let both = gate[of_row.clone()].iter().zip(&up[of_row]);
        for (found, (gate, up)) in found.iter_mut().zip(both) {
            let inner = if is_silu { *gate } else { tanh_argument(*gate) };
            *found = gate / (1.0 + exp(-inner)) * up;
        }
    });
    Ok(Some(tensor(found, dims, &device)))
}

fn tensor(numbers: Vec<f32>, dims: [usize; 2], device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(numbers, dims), (device, DType::F32))
}

/// `2u`, where GELU is about `x · (1 + tanh(u)) / 2 = x · sigmoid(2u)`.
#[inline(always)]
fn tanh_argument(x: f32) -> f32 {
    const ROOT: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::SQRT_2;
    ROOT * (x + 0.044_715 * x * x * x)
}

#[inline(always)]
fn mean_square(row: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            sums[lane] += chunk[lane] * chunk[lane];
        }
    }
    let rest: f32 = rest.iter().map(|number| number * number).sum();
    (sums.iter().sum::<f32>() + rest) / row.len() as f32
}

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;

    use super::*;
    use crate::{OpError, model};

    const CHANNELS: usize = 83;

    fn random<const D: usize>(dims: [usize; D], device: &Device) -> Tensor<D> {
        Tensor::random(dims, Distribution::Normal(0.0, 3.0), (device, DType::F32))
    }

    fn assert_close(found: Tensor<2>, expected: Tensor<2>) {
        assert_eq!(found.dims(), expected.dims());
        let numbers = |x: Tensor<2>| x.try_into_vec_as::<f32>().unwrap();
        for (found, expected) in numbers(found).into_iter().zip(numbers(expected)) {
            let off = (found - expected).abs();
            assert!(off <= 2e-6 * expected.abs().max(1.0), "{found} for {expected}");
        }
    }

    /// One row, and more than one core takes.
    const ROWS: [usize; 3] = [0, 1, MANY_ROWS];
    const MANY_ROWS: usize = 900;

    #[test]
    fn norms_are_those_of_tensor_operations() {
        let device = Device::flex();
        device.seed(2026);
        for rows in ROWS {
            for (residual, weight_less_one) in [(true, false), (false, true)] {
                let input = RmsNormInput {
                    x: random([rows, CHANNELS], &device),
                    residual: residual.then(|| random([rows, CHANNELS], &device)),
                    weight: random([CHANNELS], &device),
                    epsilon: 1e-5,
                    weight_less_one,
                };
                let found = rms_norm(&input).unwrap().unwrap();
                let expected = model::rms_norm(input);
                assert_close(found.sum, expected.sum);
                assert_close(found.normal, expected.normal);
            }
        }
    }

    /// In f64: the tensor operation of GELU loses the digits of small results.
    #[test]
    fn gates_are_those_of_their_formulas() {
        const ROOT: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
        let device = Device::flex();
        device.seed(2026);
        let numbers = |x: &Tensor<2>| x.clone().try_into_vec_as::<f32>().unwrap();
        for rows in ROWS {
            for activation in [Activation::Silu, Activation::GeluTanh] {
                // Halves of a row do not lie one after another.
                let both = random([rows, 2 * CHANNELS], &device);
                let input = GatedInput::of_halves(both, activation);
                let found = numbers(&gated(&input).unwrap().unwrap());
                let (gates, ups) = (numbers(&input.gate), numbers(&input.up));
                assert_eq!(found.len(), gates.len());
                for (found, (gate, up)) in found.into_iter().zip(gates.into_iter().zip(ups)) {
                    let (x, up) = (f64::from(gate), f64::from(up));
                    let factor = match activation {
                        Activation::Silu => 1.0 / (1.0 + (-x).exp()),
                        _ => 0.5 * (1.0 + (ROOT * (x + 0.044_715 * x.powi(3))).tanh()),
                    };
                    let off = (f64::from(found) - x * factor * up).abs();
                    // An exponent of up to 90 is rounded once or twice.
                    let most = 2e-6 * (x * factor * up).abs() + 1e-9;
                    assert!(off <= most, "{activation:?} of {gate} times {up}: {found}, {off} off");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let device = Device::flex();
        let input = RmsNormInput {
            x: random([2, CHANNELS], &device),
            residual: None,
            weight: random([CHANNELS + 1], &device),
            epsilon: 1e-5,
            weight_less_one: false,
        };
        let error = rms_norm(&input).unwrap_err();
        assert!(matches!(error, OpError::Shape { .. }), "{error}");
        let (gate, up) = (random([2, CHANNELS], &device), random([1, CHANNELS], &device));
        let error = gated(&GatedInput { gate, up, activation: Activation::Silu }).unwrap_err();
        assert!(matches!(error, OpError::Shape { .. }), "{error}");
    }
}
