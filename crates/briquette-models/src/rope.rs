use std::f64::consts::TAU;

use burn::tensor::Device;
use serde::Deserialize;

use briquette::position::RotaryEmbedding;

use crate::{
    Result,
    setting::{invalid, unsupported},
};

/// The rotary position embedding of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// The base of the frequencies.
    pub theta: f64,
    /// How the frequencies are stretched for a longer context.
    pub scaling: RopeScaling,
}

/// How frequencies are stretched for a context longer than the model was first trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// Every frequency divided by `factor` (position interpolation).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones left, those between interpolated.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// A wavelength above `original_max_position_embeddings` / this is a low frequency.
        low_freq_factor: f64,
        /// A wavelength below `original_max_position_embeddings` / this is a high frequency.
        high_freq_factor: f64,
        /// The context of the first training.
        original_max_position_embeddings: usize,
    },
}

/// `rope_scaling`, or `rope_parameters` as newer files write it.
#[derive(Deserialize)]
pub(crate) struct RopeParameters {
    rope_type: Option<String>,
    /// The older name of `rope_type`; some files hold both.
    r#type: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
}

impl RopeConfig {
    pub(crate) fn from_parameters(
        theta: Option<f64>,
        partial: Option<f64>,
        parameters: Option<RopeParameters>,
    ) -> Result<Self> {
        let inner = parameters.as_ref();
        let theta = inner.and_then(|p| p.rope_theta).or(theta).unwrap_or(10_000.0);
        if !(theta.is_finite() && theta > 0.0) {
            return Err(invalid("rope_theta", theta, "a positive number"));
        }
        if let Some(share) = inner.and_then(|p| p.partial_rotary_factor).or(partial)
            && share != 1.0
        {
            return Err(unsupported("partial_rotary_factor", share, "1"));
        }
        let scaling = parameters.map_or(Ok(RopeScaling::Default), RopeScaling::from_parameters)?;
        Ok(Self { theta, scaling })
    }

    /// Radians a position, scaled, one a pair of channels: `[head_dim / 2]`. Rounded to f32 at every step, as in
    /// [`RotaryEmbedding::inverse_frequencies`].
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f32> {
        let plain = RotaryEmbedding::inverse_frequencies(head_dim, self.theta);
        plain.into_iter().map(|frequency| self.scaling.apply(frequency)).collect()
    }

    pub(crate) fn embedding(
        &self,
        head_dim: usize,
        max_positions: usize,
        device: &Device,
    ) -> Result<RotaryEmbedding> {
        let frequencies = self.inverse_frequencies(head_dim);
        Ok(RotaryEmbedding::with_inverse_frequencies(&frequencies, max_positions, 1.0, device)?)
    }
}

impl RopeScaling {
    fn from_parameters(parameters: RopeParameters) -> Result<Self> {
        let RopeParameters { rope_type, r#type, factor, .. } = parameters;
        let require = |key, value: Option<f64>| match value {
            Some(value) if value.is_finite() && value > 0.0 => Ok(value),
            Some(value) => Err(invalid(key, value, "a positive number")),
            None => Err(invalid(key, "absent", "given for this rope type")),
        };
        match rope_type.or(r#type).as_deref().unwrap_or("default") {
            "default" => Ok(Self::Default),
            "linear" => Ok(Self::Linear { factor: require("factor", factor)? }),
            "llama3" => {
                let low = require("low_freq_factor", parameters.low_freq_factor)?;
                let high = require("high_freq_factor", parameters.high_freq_factor)?;
                if high <= low {
                    let must_be = format!("above low_freq_factor = {low}");
                    return Err(invalid("high_freq_factor", high, must_be));
                }
                let key = "original_max_position_embeddings";
                let original = match parameters.original_max_position_embeddings {
                    Some(original) if original > 0 => original,
                    Some(_) => return Err(invalid(key, 0, "at least 1")),
                    None => return Err(invalid(key, "absent", "given for this rope type")),
                };
                Ok(Self::Llama3 {
                    factor: require("factor", factor)?,
                    low_freq_factor: low,
                    high_freq_factor: high,
                    original_max_position_embeddings: original,
                })
            }
            other => Err(unsupported("rope_type", other, "default, linear and llama3")),
        }
    }

    fn apply(&self, frequency: f32) -> f32 {
        match *self {
            Self::Default => frequency,
            Self::Linear { factor } => frequency / factor as f32,
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => {
                let original = original as f64;
                let wavelength = frequency.recip() * TAU as f32;
                if wavelength > (original / low) as f32 {
                    frequency / factor as f32
                } else if wavelength < (original / high) as f32 {
                    frequency
                } else {
                    let share = wavelength.recip() * original as f32;
                    let smooth = (share - low as f32) / (high - low) as f32;
                    (1.0 - smooth) * frequency / factor as f32 + smooth * frequency
                }
            }
        }
    }
}
