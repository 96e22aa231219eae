//! Bytes as 8-bit floating point.

/// The exponent of the smallest normal number, and below.
const LOWEST: i32 = -6;
/// Bits of the mantissa, and what is added to the exponent.
const MANTISSA: i32 = 3;
const BIAS: i32 = 7;

/// The number that a byte of E4M3 (Micikevicius et al., 2022) stands for. The two that stand for
/// NaN give 480 here; none that is written by a store is one of them.
pub fn of_e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> MANTISSA & 15), f32::from(byte & 7));
    let size = match exponent {
        0 => mantissa * 2f32.powi(LOWEST - MANTISSA),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - BIAS - MANTISSA),
    };
    if byte < 128 { size } else { -size }
}
