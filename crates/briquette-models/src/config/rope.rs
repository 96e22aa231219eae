use std::sync::Arc;

use burn::tensor::Device;

use briquette::position::{PositionEncoding, RotaryEmbedding};

use crate::{
    Result, RopeScaling,
    config::{partial_rotary::PartialRotary, rope_keys::RopeKeys},
    setting::invalid,
};

/// The rotary position embedding of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// The base of the frequencies.
    pub theta: f64,
    /// The part of a head's channels that is rotated, the first ones.
    pub partial_rotary_factor: f64,
    /// Scaling of the frequencies for a longer context.
    pub scaling: RopeScaling,
}

impl RopeConfig {
    pub(crate) fn from_keys(keys: RopeKeys) -> Result<Self> {
        let inner = keys.parameters.as_ref();
        let theta = inner.and_then(|p| p.rope_theta).unwrap_or(keys.theta);
        if !(theta.is_finite() && theta > 0.0) {
            return Err(invalid("rope_theta", theta, "a positive number"));
        }
        let partial_rotary_factor =
            inner.and_then(|p| p.partial_rotary_factor).or(keys.partial).unwrap_or(1.0);
        if !(partial_rotary_factor > 0.0 && partial_rotary_factor <= 1.0) {
            let must_be = "above 0 and at most 1";
            return Err(invalid("partial_rotary_factor", partial_rotary_factor, must_be));
        }
        let scaling = match &keys.parameters {
            Some(parameters) => {
                RopeScaling::from_parameters(parameters, keys.context, keys.original)?
            }
            None => RopeScaling::Default,
        };
        Ok(Self { theta, partial_rotary_factor, scaling })
    }

    /// Channels of a head that are rotated.
    fn rotated(&self, head_dim: usize) -> usize {
        (head_dim as f64 * self.partial_rotary_factor) as usize
    }

    pub(crate) fn check(&self, head_dim: usize) -> Result<()> {
        let rotated = self.rotated(head_dim);
        if rotated == 0 || !rotated.is_multiple_of(2) {
            let must_be = format!("such that an even number of {head_dim} channels is rotated");
            return Err(invalid("partial_rotary_factor", self.partial_rotary_factor, must_be));
        }
        self.scaling.check(rotated)
    }

    /// Radians per position for texts of up to `context` tokens, scaled, one number per rotated
    /// pair of channels. Rounded to f32 at every step, as in
    /// [`RotaryEmbedding::inverse_frequencies`].
    pub fn inverse_frequencies(&self, head_dim: usize, context: usize) -> Vec<f32> {
        self.scaling.frequencies(self.rotated(head_dim), self.theta, context)
    }

    pub(crate) fn encoding(
        &self,
        head_dim: usize,
        context: usize,
        device: &Device,
    ) -> Result<Arc<dyn PositionEncoding>> {
        let frequencies = self.inverse_frequencies(head_dim, context);
        let scaling = self.scaling.attention_factor();
        let inner =
            RotaryEmbedding::with_inverse_frequencies(&frequencies, context, scaling, device)?;
        Ok(if inner.head_dim() == head_dim {
            Arc::new(inner)
        } else {
            Arc::new(PartialRotary { inner, head_dim })
        })
    }
}
