//! Numbers in f32, rounded as a narrower type holds them.
//!
//! A cast to the type and back does not promise that: a driver may leave both out, as NVIDIA's does
//! with WGSL. Numbers were then measured by a scale that is not the one that is held.

use burn::tensor::DType;
use cubecl::prelude::*;

/// Bits of f32's mantissa.
const MANTISSA: i32 = 23;

/// Bits of mantissa that a type has, and the lowest exponent at which it has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Precision {
    mantissa: i32,
    lowest: i32,
}

impl Precision {
    /// That of a type that holds numbers of f32: f16, bf16, or all of f32.
    pub(crate) fn of(dtype: DType) -> Self {
        match dtype {
            DType::F16 => Self { mantissa: 10, lowest: -14 },
            // Below this f32 has no normal number for the last bit.
            DType::BF16 => Self { mantissa: 7, lowest: -119 },
            _ => Self { mantissa: MANTISSA, lowest: -126 },
        }
    }
}

/// The number that a type of this precision holds, halves to even.
#[cube]
pub(crate) fn rounded(number: f32, #[comptime] precision: Precision) -> f32 {
    let mut rounded = number;
    if comptime!(precision.mantissa < MANTISSA) {
        let exponent = exponent_of(number).max(comptime!(precision.lowest));
        let last = exponent - comptime!(precision.mantissa);
        rounded = (number * power_of_two(-last)).round() * power_of_two(last);
    }
    rounded
}

/// The exponent of a number, −127 of one that is not normal.
#[cube]
pub(crate) fn exponent_of(number: f32) -> i32 {
    i32::cast_from(u32::reinterpret(number.abs()) >> 23) - 127
}

/// Two to an exponent from −126 to 127.
#[cube]
pub(crate) fn power_of_two(exponent: i32) -> f32 {
    f32::reinterpret(u32::cast_from(exponent + 127) << 23)
}
