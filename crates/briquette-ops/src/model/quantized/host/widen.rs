//! Numbers of 16 bits in f32, several per instruction: `half` calls a function for each eight.

use burn::tensor::f16;
use pulp::{Simd, WithSimd};

/// Bits of an f16 without its sign, and those of its exponent.
const MAGNITUDE: u32 = 0x7fff;
const EXPONENT: u32 = 0x7c00;
/// Bits that a mantissa of f32 has more.
const LONGER: u32 = 23 - 10;

/// Writes numbers as f32.
pub(super) struct Widen<'a> {
    pub(super) from: &'a [f16],
    pub(super) to: &'a mut [f32],
}

impl WithSimd for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        for (from, to) in self.from.iter().zip(self.to) {
            *to = wide(*from);
        }
    }
}

/// Exponents of f32 begin 112 lower; the product puts that right, for subnormal numbers too.
#[inline(always)]
fn wide(number: f16) -> f32 {
    let bits = u32::from(number.to_bits());
    let magnitude = f32::from_bits((bits & MAGNITUDE) << LONGER) * 2.0_f32.powi(112);
    // Infinity and NaN have the largest exponent, which is another one here.
    let beyond = if bits & EXPONENT == EXPONENT { 0xff << 23 } else { 0 };
    f32::from_bits(magnitude.to_bits() | beyond | (bits & !MAGNITUDE) << 16)
}

#[cfg(test)]
mod tests {
    use pulp::Arch;

    use super::*;

    #[test]
    fn every_number_is_that_of_half() {
        let from: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let mut to = vec![0.0; from.len()];
        Arch::new().dispatch(Widen { from: &from, to: &mut to });
        for (from, to) in from.into_iter().zip(to) {
            let expected = f32::from(from);
            let alike = expected.to_bits() == to.to_bits() || (expected.is_nan() && to.is_nan());
            assert!(alike, "{from}: {to}");
        }
    }
}
