//! Reciprocals.

use cubecl::prelude::*;

use super::call::call_for_number;

/// 1 / x by one instruction, off by one unit of the last place at most; 0 for an x above 2¹²⁶. A
/// division takes a dozen.
#[cube]
#[allow(unused_variables)]
pub(crate) fn reciprocal(x: f32) -> f32 {
    intrinsic!(|scope| {
        let x = x.read_value(scope);
        call_for_number(scope, "llvm.nvvm.rcp.approx.ftz.f", x).into()
    })
}
