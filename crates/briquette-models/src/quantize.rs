use std::{fmt, str::FromStr};

use burn::tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};

use briquette::ops::{QuantizedMatrix, WeightFormat};

use crate::{
    Error, Model, Result,
    nn::{embedding::Embedding, projection::Projection},
    setting::invalid,
};

/// Bits that weights are quantized to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum WeightBits {
    /// Four.
    Four,
    /// Eight.
    Eight,
}

impl WeightBits {
    /// The format of rows of so many weights: a scale for 128 of them, or for 32 where rows are no
    /// multiple of 128; `None` where they are none of 32 either.
    pub fn format(self, inputs: usize) -> Option<WeightFormat> {
        let all = match self {
            Self::Eight => [WeightFormat::Q8Group128, WeightFormat::Q8_0],
            Self::Four => [WeightFormat::Q4Group128, WeightFormat::Q4_0],
        };
        all.into_iter().find(|format| inputs.is_multiple_of(format.group()))
    }
}

impl TryFrom<u8> for WeightBits {
    type Error = Error;

    fn try_from(bits: u8) -> Result<Self> {
        match bits {
            4 => Ok(Self::Four),
            8 => Ok(Self::Eight),
            _ => Err(invalid("quantize", bits, "4 or 8")),
        }
    }
}

impl From<WeightBits> for u8 {
    fn from(bits: WeightBits) -> Self {
        match bits {
            WeightBits::Four => 4,
            WeightBits::Eight => 8,
        }
    }
}

impl FromStr for WeightBits {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bits = text.parse::<u8>().map_err(|_| invalid("quantize", text, "4 or 8"))?;
        bits.try_into()
    }
}

impl fmt::Display for WeightBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", u8::from(*self))
    }
}

impl Model {
    /// The same model with quantized weights: those of its linear layers in so many bits, its
    /// embeddings in eight, each level the nearest, and an f16 scale for 128 weights
    /// ([format](WeightBits::format)). Rows of other lengths, the gates of experts and what is
    /// quantized already stay as they are. It takes about a half or a quarter of the bytes of
    /// 16-bit weights.
    ///
    /// # Errors
    /// [`Error::Cache`] for weights that are not finite.
    pub fn quantize_weights(mut self, bits: WeightBits) -> Result<Self> {
        let device = self.device();
        for (path, projection) in self.projections() {
            // Experts are chosen by it.
            if path.ends_with(".gate") {
                continue;
            }
            let Projection::Dense(dense) = &*projection else { continue };
            let rows = dense.weight.val().transpose();
            if let Some(matrix) = quantized(rows, bits)? {
                *projection = projection.clone().with_quantized(matrix);
            }
        }
        if let Embedding::Dense(dense) = &self.model.embed_tokens {
            let (rows, dtype) = (dense.weight.val(), self.dtype());
            if let Some(matrix) = quantized(rows, WeightBits::Eight)? {
                self.model.embed_tokens = Embedding::quantized(matrix, dtype);
            }
        }
        // What they were.
        device.memory_cleanup();
        Ok(self)
    }
}

/// `[outputs, inputs]`; `None` where rows have no format.
fn quantized(rows: Tensor<2>, bits: WeightBits) -> Result<Option<QuantizedMatrix>> {
    let ([outputs, inputs], device) = (rows.dims(), rows.device());
    let Some(format) = bits.format(inputs) else { return Ok(None) };
    let weights = rows.cast(DType::F32).try_into_vec_as::<f32>()?;
    let matrix = QuantizedMatrix::quantize(format, [outputs, inputs], &weights, &device);
    Ok(Some(matrix.map_err(briquette::Error::from)?))
}
