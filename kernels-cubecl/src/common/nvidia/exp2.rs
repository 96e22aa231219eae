//! Powers of two.

use cubecl::prelude::*;

use super::call::call_for_number;

/// 2ˣ by one instruction, off by two units of the last place at most; 0 for x below −126. CubeCL's
/// `exp` takes nine, of which one is this.
#[cube]
#[allow(unused_variables)]
pub(crate) fn exp2(x: f32) -> f32 {
    intrinsic!(|scope| {
        let x = x.read_value(scope);
        call_for_number(scope, "llvm.nvvm.ex2.approx.ftz.f", x).into()
    })
}
