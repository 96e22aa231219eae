use burn::tensor::{DType, Tensor};

use super::words::pack_words;
use crate::{attention::PackedVectors, constant::constant_floats, e4m3};

/// Quantizes by tensor operations, on devices that need not have the type: the reference of
/// [`EntryOps::quantize_fp8`](super::EntryOps::quantize_fp8), which refuses nothing.
pub fn quantize_fp8(x: Tensor<3>, dtype: DType) -> PackedVectors {
    use e4m3::{BIAS, HIGHEST, LARGEST, LOWEST, MANTISSA};
    let largest = f64::from(LARGEST);
    let [pages, rows, channels] = x.dims();
    let device = x.device();
    let x = x.cast(DType::F32);
    // What is held is what the numbers are measured by.
    let scale = (x.clone().abs().max_dim(2) / largest).cast(dtype);
    let held = scale.clone().cast(DType::F32);
    let step = held.clone().mask_fill(held.equal_scalar(0.0), 1.0);
    let x = (x / step).clamp(-largest, largest);

    let size = x.clone().abs();
    let log = size.clone().clamp_min(2f64.powi(LOWEST)).log() / std::f64::consts::LN_2;
    // One less than it should be for a power of two gives the same byte: the mantissa is carried
    // over.
    let exponent = log.floor().int().clamp(LOWEST, HIGHEST);
    let units: Vec<f32> = (LOWEST..=HIGHEST).map(|e| 2f32.powi(e - MANTISSA)).collect();
    let count = units.len();
    let units = constant_floats("units of E4M3", units, [count], &device);
    let numbers = pages * rows * channels;
    let place = (exponent.clone() - LOWEST).reshape([numbers]);
    let unit = units.select(0, place).reshape([pages, rows, channels]);
    let mantissa = (size / unit).round().int();
    let magnitude = (exponent + BIAS) * (1 << MANTISSA) + mantissa - (1 << MANTISSA);
    let sign = x.lower_scalar(0.0).int() * 128;
    let words = pack_words(magnitude.clamp(0, 126) + sign, 8);
    let width = words.dims()[2];
    PackedVectors {
        words: words.reshape([pages, rows * width]),
        scale: scale.reshape([pages, rows]),
    }
}
