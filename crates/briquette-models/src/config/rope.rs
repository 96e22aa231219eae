use std::{
    fmt::{self, Display, Formatter},
    sync::Arc,
};

use burn::tensor::Device;

use briquette::position::{PositionEncoding, RotaryEmbedding};

use crate::{
    Result, RopeScaling,
    config::{
        partial_rotary::PartialRotary,
        rope_keys::{RopeKeys, RopeParameters},
    },
    setting::{contradiction, invalid, unsupported},
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
    /// `rope_scaling` goes before `rope_parameters`: advice is to add the one to files that have
    /// the other without a scaling. An empty one is none.
    pub(crate) fn from_keys(keys: &RopeKeys) -> Result<Self> {
        let given = |parameters: &Option<RopeParameters>| {
            parameters.clone().filter(|parameters| *parameters != RopeParameters::default())
        };
        let (scaling, parameters) = (given(&keys.scaling), given(&keys.parameters));
        let (Some(scaling), Some(parameters)) = (&scaling, &parameters) else {
            return Self::of(scaling.or(parameters).unwrap_or_default(), keys);
        };
        let [first, second] =
            [Self::of(scaling.clone(), keys)?, Self::of(parameters.clone(), keys)?];
        let without = Self { scaling: RopeScaling::Default, ..first.clone() };
        if second != first && second != without {
            return Err(contradiction("rope_scaling", first, "rope_parameters", second));
        }
        Ok(first)
    }

    fn of(parameters: RopeParameters, keys: &RopeKeys) -> Result<Self> {
        if parameters.full_attention.is_some() || parameters.sliding_attention.is_some() {
            let found = "full_attention and sliding_attention";
            return Err(unsupported("rope_parameters", found, "one for all layers"));
        }
        let theta = one("rope_theta", keys.theta, parameters.rope_theta)?;
        let theta = theta.unwrap_or(keys.default_theta);
        if !(theta.is_finite() && theta > 0.0) {
            return Err(invalid("rope_theta", theta, "a positive number"));
        }
        let inner = parameters.original_max_position_embeddings;
        let original = || one("original_max_position_embeddings", keys.original, inner);
        let scaling = RopeScaling::from_parameters(&parameters, keys.context, original)?;
        let inner = parameters.partial_rotary_factor;
        // `transformers` writes the default of a family beside parameters that say otherwise. It
        // reads those, but where it scales frequencies.
        let is_read = inner.is_none() || scaling != RopeScaling::Default;
        let partial = one("partial_rotary_factor", keys.partial.filter(|_| is_read), inner)?;
        let partial_rotary_factor = partial.unwrap_or(1.0);
        if !(partial_rotary_factor > 0.0 && partial_rotary_factor <= 1.0) {
            let must_be = "above 0 and at most 1";
            return Err(invalid("partial_rotary_factor", partial_rotary_factor, must_be));
        }
        Ok(Self { theta, partial_rotary_factor, scaling })
    }

    /// Channels of a head that are rotated.
    pub(crate) fn rotated(&self, head_dim: usize) -> usize {
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

/// The value of a key that may stand beside the rope's parameters and in them.
fn one<T: Copy + PartialEq + Display>(
    key: &'static str,
    outside: Option<T>,
    inside: Option<T>,
) -> Result<Option<T>> {
    match (outside, inside) {
        (Some(outside), Some(inside)) if outside != inside => {
            Err(contradiction(key, outside, "the one among the rope's parameters", inside))
        }
        _ => Ok(inside.or(outside)),
    }
}

impl Display for RopeConfig {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { theta, partial_rotary_factor, scaling } = self;
        write!(f, "{scaling:?} of base {theta}")?;
        match *partial_rotary_factor < 1.0 {
            true => write!(f, " of {partial_rotary_factor} of the channels"),
            false => Ok(()),
        }
    }
}
