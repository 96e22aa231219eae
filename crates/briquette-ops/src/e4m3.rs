//! Bytes as 8-bit floating point.

/// The largest number of E4M3.
pub const LARGEST: f32 = 448.0;
/// The exponent of its smallest normal number, and of those below.
pub const LOWEST: i32 = -6;
/// The exponent of its largest number.
pub const HIGHEST: i32 = 8;
/// Bits of its mantissa.
pub const MANTISSA: i32 = 3;
/// The number that is added to its exponents.
pub const BIAS: i32 = 7;

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
