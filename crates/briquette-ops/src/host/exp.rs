//! The exponential function in plain arithmetic, so that a loop over numbers is vector code:
//! `f32::exp` is a call for each.

/// `log2(e)`.
const TO_BINARY: f32 = std::f32::consts::LOG2_E;
/// `ln(2)` in two parts: products of the first with whole numbers below 2¹¹ are exact.
const LN_2: [f32; 2] = [0.693_145_75, 1.428_606_8e-6];
/// Added and taken away, it rounds a number to a whole one.
const ROUNDER: f32 = (3 << 22) as f32;
/// Coefficients of e^r for |r| ≤ ln(2) / 2, of r² on.
const SERIES: [f32; 5] = [0.5, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0];
/// Below the first the result is zero, above the second infinite.
const ENDS: [f32; 2] = [-104.0, 89.0];

/// `e^x`, within three units in the last place. NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let x = x.clamp(ENDS[0], ENDS[1]);
    let shifted = x * TO_BINARY + ROUNDER;
    let power = shifted - ROUNDER;
    let rest = x - power * LN_2[0] - power * LN_2[1];
    let [second, third, fourth, fifth, sixth] = SERIES;
    let high = fourth + rest * (fifth + rest * sixth);
    let series = 1.0 + (rest + rest * rest * (second + rest * (third + rest * high)));
    // In two steps: the least results are below the least power of two with all its digits.
    let whole = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()).cast_signed();
    let half = whole >> 1;
    series * power_of_two(half) * power_of_two(whole.wrapping_sub(half))
}

#[inline(always)]
fn power_of_two(power: i32) -> f32 {
    f32::from_bits(power.wrapping_add(127).cast_unsigned() << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_within_three_units_of_the_function() {
        for step in -1_040_000..=890_000 {
            let x = step as f32 * 1e-4;
            let (found, expected) = (exp(x), f64::from(x).exp());
            let nearest = expected as f32;
            if nearest.is_infinite() {
                assert!(found.is_infinite(), "{x}: {found}");
                continue;
            }
            let unit = f64::from(nearest.next_up() - nearest);
            let off = (f64::from(found) - expected).abs() / unit;
            assert!(off <= 3.0, "{x}: {found}, {off} units off");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!([exp(f32::NEG_INFINITY), exp(f32::MIN)], [0.0; 2]);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }
}
