use std::{fmt, str::FromStr};

use briquette_ops::WeightFormat;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, setting::invalid};

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
