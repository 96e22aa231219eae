//! Activations in f64.

use briquette_ops::Activation;

pub(super) const ACTIVATIONS: [Activation; 3] =
    [Activation::Silu, Activation::Gelu, Activation::GeluTanh];

pub(super) fn activated(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / 2.0_f64.sqrt())),
        Activation::GeluTanh => {
            let scale = (2.0 / std::f64::consts::PI).sqrt();
            0.5 * x * (1.0 + (scale * (x + 0.044715 * x.powi(3))).tanh())
        }
    }
}

/// The most that an activation changes by, as a multiple of what its input changes by.
pub(super) fn steepest(activation: Activation) -> f64 {
    match activation {
        Activation::Silu => 1.1,
        Activation::Gelu | Activation::GeluTanh => 1.13,
    }
}

/// Abramowitz and Stegun, 7.1.5: the series, to its end.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while f64::abs(term) > 1e-18 {
        n += 1.0;
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}
