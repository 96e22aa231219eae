//! Logarithms.

use cubecl::prelude::*;

use super::call::call_for_number;

/// log₂(x) by one instruction, off by 2⁻²² at most; −∞ for an x below 2⁻¹²⁶. CubeCL's `ln` calls a
/// function.
#[cube]
#[allow(unused_variables)]
pub(crate) fn log2(x: f32) -> f32 {
    intrinsic!(|scope| {
        let x = x.read_value(scope);
        call_for_number(scope, "llvm.nvvm.lg2.approx.ftz.f", x).into()
    })
}
