//! Gates behind a product. Units multiply nothing meanwhile, and a kernel that calls a function
//! multiplies slowly: activations are made of the instructions that NVIDIA has for a power and a
//! reciprocal.

use std::f32::consts::{FRAC_1_SQRT_2, LOG2_E};

use briquette_ops::Activation;
use cubecl::prelude::*;

use crate::common::{
    nvidia::{exp2::exp2, reciprocal::reciprocal},
    tile::mma::Pair,
};

/// Two sums of one side of a gated feed-forward network, times the activation of the same of the
/// gate. Sums are rounded, and the activation, as an operation of its own would do.
#[cube]
pub(super) fn gated_pair<E: Float>(
    gate: Pair<f32>,
    up: Pair<f32>,
    #[comptime] activation: Activation,
) -> Pair<E> {
    let gate = Pair::<f32>::cast_from(Pair::<E>::cast_from(gate));
    let up = Pair::<f32>::cast_from(Pair::<E>::cast_from(up));
    let mut active = Pair::<f32>::empty();
    #[unroll]
    for side in 0..2usize {
        active.insert(side, activated(gate.extract(side), activation));
    }
    let rounded = Pair::<f32>::cast_from(Pair::<E>::cast_from(active));
    Pair::<E>::cast_from(rounded * up)
}

#[cube]
fn activated(x: f32, #[comptime] activation: Activation) -> f32 {
    match comptime!(activation) {
        Activation::Silu => x * logistic(x),
        // (1 + tanh(u)) / 2 is the logistic function of 2 u.
        Activation::GeluTanh => x * logistic(1.595_769_1 * (x + 0.044_715 * x * x * x)),
        Activation::Gelu => x * normal(x),
    }
}

/// 1 / (1 + exp(−x)).
#[cube]
fn logistic(x: f32) -> f32 {
    reciprocal(1.0 + exp2(x * comptime!(-LOG2_E)))
}

/// How likely a normal number is at most x: half of erfc(−x / √2), by a fit of Chebyshev
/// polynomials whose error is 1.2 × 10⁻⁷ of it at most (Press et al., Numerical Recipes, 1992, 6.2,
/// `erfcc`). The power is rounded, which adds 6 × 10⁻⁶ far below 0.
#[cube]
fn normal(x: f32) -> f32 {
    let z = x.abs() * FRAC_1_SQRT_2;
    let t = reciprocal(fma(z, 0.5, 1.0));
    let mut power = fma(t, 0.170_872_77, -0.822_152_23);
    power = fma(t, power, 1.488_515_9);
    power = fma(t, power, -1.135_204);
    power = fma(t, power, 0.278_868_07);
    power = fma(t, power, -0.186_288_06);
    power = fma(t, power, 0.096_784_18);
    power = fma(t, power, 0.374_091_96);
    power = fma(t, power, 1.000_023_7);
    power = fma(t, power, -1.265_512_2);
    // Of a number further from 0 than |x|, on one side.
    let beyond = 0.5 * t * exp2(fma(-z, z, power) * LOG2_E);
    select(x < 0.0, beyond, 1.0 - beyond)
}
