use std::f64::consts::TAU;

use briquette::position::RotaryEmbedding;

use crate::{
    Result,
    config::rope_keys::RopeParameters,
    setting::{contradiction, invalid, unsupported},
};

/// Scaling of the frequencies for a context longer than the model was first trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    Default,
    /// Every frequency divided by `factor` (position interpolation; Chen et al., 2023,
    /// [arXiv:2306.15595](https://arxiv.org/abs/2306.15595)).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// A base that grows with the context once that is longer than the first training's ("dynamic
    /// NTK").
    Dynamic {
        /// Rate of its growth.
        factor: f64,
        /// The context of the first training.
        original_max_position_embeddings: usize,
    },
    /// YaRN (Peng et al., 2023, [arXiv:2309.00071](https://arxiv.org/abs/2309.00071)): frequencies
    /// that turn less than `beta_slow` times in the first context divided by `factor`, those that
    /// turn more than `beta_fast` times left, a ramp between.
    Yarn {
        /// The divisor of low frequencies.
        factor: f64,
        /// Turns from which on a frequency is left.
        beta_fast: f64,
        /// Turns up to which a frequency is divided.
        beta_slow: f64,
        /// Whether the ends of the ramp are whole channels.
        truncate: bool,
        /// Factor of cosines and sines.
        attention_factor: f64,
        /// The context of the first training.
        original_max_position_embeddings: usize,
    },
    /// LongRoPE (Ding et al., 2024, [arXiv:2402.13753](https://arxiv.org/abs/2402.13753)): a
    /// divisor of each frequency, other ones beyond the first context.
    LongRope {
        /// Divisors in the first context.
        short_factor: Vec<f64>,
        /// Divisors beyond it.
        long_factor: Vec<f64>,
        /// Factor of cosines and sines.
        attention_factor: f64,
        /// The context of the first training.
        original_max_position_embeddings: usize,
        /// The longest context.
        max_position_embeddings: usize,
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

impl RopeScaling {
    /// `context` is `max_position_embeddings` of the file, `original` its context of the first
    /// training, if it says one.
    pub(crate) fn from_parameters(
        parameters: &RopeParameters,
        context: usize,
        original: impl Fn() -> Result<Option<usize>>,
    ) -> Result<Self> {
        let original = || match original()?.unwrap_or(context) {
            original if original > 1 => Ok(original),
            found => Err(invalid("original_max_position_embeddings", found, "at least 2")),
        };
        let factor = || require("factor", parameters.factor);
        // "su" is its name in the first files of Phi-3.
        let named = |kind: &Option<String>| match kind.as_deref() {
            Some("su") => Some("longrope".to_owned()),
            kind => kind.map(str::to_owned),
        };
        let (kind, older) = (named(&parameters.rope_type), named(&parameters.r#type));
        if let (Some(kind), Some(older)) = (&kind, &older)
            && kind != older
        {
            return Err(contradiction("rope_type", kind, "type", older));
        }
        match kind.or(older).as_deref().unwrap_or("default") {
            "default" => match parameters.factor.filter(|factor| *factor != 1.0) {
                None => Ok(Self::Default),
                Some(factor) => {
                    let must_be = format!("one that has a factor, which is {factor}");
                    Err(invalid("rope_type", "absent or default", must_be))
                }
            },
            "linear" => Ok(Self::Linear { factor: factor()? }),
            "dynamic" => {
                let factor = factor()?;
                if factor < 1.0 {
                    return Err(invalid("factor", factor, "at least 1"));
                }
                Ok(Self::Dynamic { factor, original_max_position_embeddings: context })
            }
            "yarn" => {
                let original = original()?;
                let factor = parameters.factor.unwrap_or(context as f64 / original as f64);
                let factor = require("factor", Some(factor))?;
                Ok(Self::Yarn {
                    factor,
                    beta_fast: require("beta_fast", Some(parameters.beta_fast.unwrap_or(32.0)))?,
                    beta_slow: require("beta_slow", Some(parameters.beta_slow.unwrap_or(1.0)))?,
                    truncate: parameters.truncate.is_on(true),
                    attention_factor: yarn_attention_factor(parameters, factor),
                    original_max_position_embeddings: original,
                })
            }
            "longrope" => {
                let original = original()?;
                let factor = parameters.factor.unwrap_or(context as f64 / original as f64);
                let grown = (1.0 + factor.ln() / (original as f64).ln()).sqrt();
                let inferred = if factor <= 1.0 { 1.0 } else { grown };
                let divisors = |key, factors: &Option<Vec<f64>>| match factors {
                    None => Err(invalid(key, "absent", "given for this rope type")),
                    Some(factors) => match factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
                        Some(found) => Err(invalid(key, found, "positive numbers")),
                        None => Ok(factors.clone()),
                    },
                };
                Ok(Self::LongRope {
                    short_factor: divisors("short_factor", &parameters.short_factor)?,
                    long_factor: divisors("long_factor", &parameters.long_factor)?,
                    attention_factor: parameters.attention_factor.unwrap_or(inferred),
                    original_max_position_embeddings: original,
                    max_position_embeddings: context,
                })
            }
            "llama3" => {
                let low = require("low_freq_factor", parameters.low_freq_factor)?;
                let high = require("high_freq_factor", parameters.high_freq_factor)?;
                if high < low {
                    let must_be = format!("at least low_freq_factor = {low}");
                    return Err(invalid("high_freq_factor", high, must_be));
                }
                Ok(Self::Llama3 {
                    factor: factor()?,
                    low_freq_factor: low,
                    high_freq_factor: high,
                    original_max_position_embeddings: original()?,
                })
            }
            other => Err(unsupported(
                "rope_type",
                other,
                "default, linear, dynamic, yarn, longrope and llama3",
            )),
        }
    }

    /// Checks that there is a divisor for each of `rotated / 2` pairs of channels.
    pub(crate) fn check(&self, rotated: usize) -> Result<()> {
        if let Self::LongRope { short_factor, long_factor, .. } = self {
            for (key, factors) in [
                ("the length of short_factor", short_factor),
                ("the length of long_factor", long_factor),
            ] {
                if factors.len() != rotated / 2 {
                    let must_be = format!("{}, half the rotated channels of a head", rotated / 2);
                    return Err(invalid(key, factors.len(), must_be));
                }
            }
        }
        if matches!(self, Self::Dynamic { .. }) && rotated <= 2 {
            return Err(invalid("head_dim", rotated, "above 2 for dynamic frequencies"));
        }
        Ok(())
    }

    /// The context of a model whose file says `max_position_embeddings`.
    pub(crate) fn context(&self, max_position_embeddings: usize) -> usize {
        match self {
            // Files that stretch a model with YaRN may say what it had before.
            Self::Yarn { .. } => self.longest().unwrap_or(0).max(max_position_embeddings),
            Self::LongRope { original_max_position_embeddings: original, .. } => {
                max_position_embeddings.min(*original)
            }
            _ => max_position_embeddings,
        }
    }

    /// The longest context that can be chosen, if it does not follow from the file's own.
    pub(crate) fn longest(&self) -> Option<usize> {
        match self {
            Self::Dynamic { factor, original_max_position_embeddings: original }
            | Self::Yarn { factor, original_max_position_embeddings: original, .. } => {
                Some((*original as f64 * factor) as usize)
            }
            Self::LongRope { max_position_embeddings, .. } => Some(*max_position_embeddings),
            _ => None,
        }
    }

    /// The factor of cosines and sines.
    pub(crate) fn attention_factor(&self) -> f64 {
        match self {
            Self::Yarn { attention_factor, .. } | Self::LongRope { attention_factor, .. } => {
                *attention_factor
            }
            _ => 1.0,
        }
    }

    /// Radians per position, one number per pair of channels, for texts of up to `context` tokens.
    pub(crate) fn frequencies(&self, rotated: usize, theta: f64, context: usize) -> Vec<f32> {
        let plain = || RotaryEmbedding::inverse_frequencies(rotated, theta);
        // The period of a pair over 2π, which the frequency is 1 over.
        let powers =
            || (0..rotated / 2).map(move |i| (theta as f32).powf((2 * i) as f32 / rotated as f32));
        match self {
            Self::Default => plain(),
            Self::Linear { factor } => {
                plain().into_iter().map(|frequency| frequency / *factor as f32).collect()
            }
            Self::Dynamic { factor, original_max_position_embeddings: original } => {
                let longer = context.max(*original) as f32;
                let growth = *factor as f32 * longer / *original as f32 - (*factor - 1.0) as f32;
                let exponent = (rotated as f64 / (rotated as f64 - 2.0)) as f32;
                let base = theta as f32 * growth.powf(exponent);
                RotaryEmbedding::inverse_frequencies(rotated, f64::from(base))
            }
            Self::Yarn {
                factor,
                beta_fast,
                beta_slow,
                truncate,
                original_max_position_embeddings: original,
                ..
            } => {
                // The channel whose frequency turns so often in the first context.
                let channel = |turns: f64| {
                    let period = *original as f64 / (turns * TAU);
                    rotated as f64 * period.ln() / (2.0 * theta.ln())
                };
                let (mut low, mut high) = (channel(*beta_fast), channel(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(rotated as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                let ramp =
                    |i: usize| ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
                let stretch = |(i, power): (usize, f32)| {
                    let kept = 1.0 - ramp(i);
                    1.0 / (*factor as f32 * power) * (1.0 - kept) + 1.0 / power * kept
                };
                powers().enumerate().map(stretch).collect()
            }
            Self::LongRope {
                short_factor,
                long_factor,
                original_max_position_embeddings: original,
                ..
            } => {
                let divisors = if context > *original { long_factor } else { short_factor };
                let divided = |(power, divisor): (f32, &f64)| 1.0 / (*divisor as f32 * power);
                powers().zip(divisors).map(divided).collect()
            }
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => {
                let original = *original as f64;
                let stretch = |frequency: f32| {
                    let wavelength = frequency.recip() * TAU as f32;
                    if wavelength > (original / low) as f32 {
                        frequency / *factor as f32
                    } else if wavelength <= (original / high) as f32 {
                        frequency
                    } else {
                        let share = wavelength.recip() * original as f32;
                        let smooth = (share - *low as f32) / (high - low) as f32;
                        (1.0 - smooth) * frequency / *factor as f32 + smooth * frequency
                    }
                };
                plain().into_iter().map(stretch).collect()
            }
        }
    }
}

fn require(key: &'static str, value: Option<f64>) -> Result<f64> {
    match value {
        Some(value) if value.is_finite() && value > 0.0 => Ok(value),
        Some(value) => Err(invalid(key, value, "a positive number")),
        None => Err(invalid(key, "absent", "given for this rope type")),
    }
}

/// YaRN's growth of scores with a factor of the context.
pub(crate) fn mscale(factor: f64, share: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * share * factor.ln() + 1.0 }
}

/// YaRN's factor of cosines and sines: `0.1 · ln(factor) + 1`, or a ratio of two such.
fn yarn_attention_factor(parameters: &RopeParameters, factor: f64) -> f64 {
    let set = |value: Option<f64>| value.filter(|value| *value != 0.0);
    match (parameters.attention_factor, set(parameters.mscale), set(parameters.mscale_all_dim)) {
        (Some(given), ..) => given,
        (None, Some(share), Some(all)) => mscale(factor, share) / mscale(factor, all),
        _ => mscale(factor, 1.0),
    }
}
