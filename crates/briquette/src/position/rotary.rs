use std::sync::{Arc, OnceLock};

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::{Error, Result};

/// Rotary position embedding (RoPE; Su et al., 2021), in the layout of Llama checkpoints: channel `i`
/// is paired with channel `i + head_dim / 2`.
///
/// Cosines and sines come from a table made on the host from angles rounded to f32 (as
/// `transformers` does), so every backend rotates by the same numbers.
#[derive(Clone, Debug)]
pub struct RotaryEmbedding {
    /// `[max_positions, head_dim / 2]`
    cos: Tensor<2>,
    /// `[max_positions, head_dim / 2]`
    sin: Tensor<2>,
    /// Both in half precision, once they are asked for.
    half: Arc<OnceLock<(Tensor<2>, Tensor<2>)>>,
    head_dim: usize,
    pub(super) max_positions: usize,
}

impl RotaryEmbedding {
    /// The plain embedding: frequency `i` is `theta^(-2i / head_dim)`.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] if `head_dim` is odd or zero, `max_positions` is zero, or `theta` is not
    /// positive.
    pub fn new(head_dim: usize, max_positions: usize, theta: f64, device: &Device) -> Result<Self> {
        if !(theta.is_finite() && theta > 0.0) {
            return Err(Error::InvalidParameter {
                parameter: "theta",
                value: theta.to_string(),
                must_be: "a positive number".into(),
            });
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(Error::InvalidParameter {
                parameter: "head_dim",
                value: head_dim.to_string(),
                must_be: "even and at least 2".into(),
            });
        }
        let frequencies = Self::inverse_frequencies(head_dim, theta);
        Self::with_inverse_frequencies(&frequencies, max_positions, 1.0, device)
    }

    /// The frequencies of the plain embedding, radians a position, one a pair of channels: `[head_dim / 2]`.
    ///
    /// Every step is rounded to f32 in the order of `transformers`: at position 4096 one unit in the last
    /// place of a frequency is already seen in the logits.
    pub fn inverse_frequencies(head_dim: usize, theta: f64) -> Vec<f32> {
        (0..head_dim / 2)
            .map(|i| 1.0 / (theta as f32).powf((2 * i) as f32 / head_dim as f32))
            .collect()
    }

    /// An embedding of given frequencies (radians a position), one a pair of channels; for scaled variants.
    /// `attention_scaling` multiplies cosines and sines.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] if there are no frequencies or no positions, or a number is not finite.
    pub fn with_inverse_frequencies(
        frequencies: &[f32],
        max_positions: usize,
        attention_scaling: f64,
        device: &Device,
    ) -> Result<Self> {
        let invalid = |parameter, value: String, must_be: &str| Error::InvalidParameter {
            parameter,
            value,
            must_be: must_be.into(),
        };
        if frequencies.is_empty() || frequencies.iter().any(|f| !f.is_finite()) {
            return Err(invalid(
                "frequencies",
                format!("{frequencies:?}"),
                "finite and at least one",
            ));
        }
        if max_positions == 0 {
            return Err(invalid("max_positions", "0".into(), "at least 1"));
        }
        if !attention_scaling.is_finite() {
            return Err(invalid("attention_scaling", attention_scaling.to_string(), "finite"));
        }
        let half = frequencies.len();
        let angles = (0..max_positions)
            .flat_map(|position| frequencies.iter().map(move |f| f64::from(position as f32 * f)));
        let (cos, sin): (Vec<f32>, Vec<f32>) = angles
            .map(|angle| {
                let (sin, cos) = angle.sin_cos();
                ((cos * attention_scaling) as f32, (sin * attention_scaling) as f32)
            })
            .unzip();
        let table = |data| {
            Tensor::from_data(TensorData::new(data, [max_positions, half]), (device, DType::F32))
        };
        Ok(Self {
            cos: table(cos),
            sin: table(sin),
            half: Arc::default(),
            head_dim: 2 * half,
            max_positions,
        })
    }

    /// Cosines and sines, each `[max_positions, head_dim / 2]`, f32.
    pub fn tables(&self) -> (Tensor<2>, Tensor<2>) {
        (self.cos.clone(), self.sin.clone())
    }

    /// Cosines and sines for a kernel that encodes keys of this type as it reads them, each
    /// `[max_positions, head_dim / 2]`: f16 where keys have 16 bits and the device has it, else f32.
    ///
    /// A kernel reads the tables once a token, four times as many bytes as the key if tokens share it. f16 holds a cosine to
    /// 2^-12, where a turned key is rounded to 2^-9 of itself in bf16 and 2^-12 in f16.
    pub fn tables_for(&self, keys: DType) -> (Tensor<2>, Tensor<2>) {
        let short = matches!(keys, DType::BF16 | DType::F16);
        if !short || !self.cos.device().supports_dtype(DType::F16) {
            return self.tables();
        }
        let half = |table: &Tensor<2>| table.clone().cast(DType::F16);
        self.half.get_or_init(|| (half(&self.cos), half(&self.sin))).clone()
    }

    /// Channels a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn keys_of_16_bits_have_tables_of_16_bits() {
        let device = Device::flex();
        let rope = RotaryEmbedding::new(8, 5, 10_000.0, &device).unwrap();
        let numbers = |x: Tensor<2>| x.cast(DType::F32).try_into_vec_as::<f32>().unwrap();
        let (cosines, sines) = rope.tables();
        let (same, _) = rope.tables_for(DType::F32);
        assert_eq!(same.dtype(), DType::F32);
        assert_eq!(numbers(same), numbers(cosines.clone()));
        for keys in [DType::BF16, DType::F16] {
            let (half_cosines, half_sines) = rope.tables_for(keys);
            for (half, whole) in [(half_cosines, &cosines), (half_sines, &sines)] {
                assert_eq!(half.dtype(), DType::F16);
                let both = numbers(half).into_iter().zip(numbers(whole.clone()));
                both.for_each(|(half, whole)| assert!((half - whole).abs() <= 2_f32.powi(-12)));
            }
        }
    }
}
