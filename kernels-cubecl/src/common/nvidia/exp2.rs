//! Powers of two.

use cubecl::{
    ir::{dialect::general::ReinterpretCastOp, pliron::r#type::Typed},
    prelude::*,
};

use super::call::{call_for, f32_type};

/// 2ˣ by one instruction, off by two units of the last place at most; 0 for x below −126. CubeCL's
/// `exp` takes nine, of which one is this.
#[cube]
#[allow(unused_variables)]
pub(crate) fn exp2(x: f32) -> f32 {
    intrinsic!(|scope| {
        let x = x.read_value(scope);
        let number = x.get_type(scope.ctx());
        let of_llvm = f32_type(scope.ctx());
        let power = call_for(scope, "llvm.nvvm.ex2.approx.ftz.f", &[(x, of_llvm)], of_llvm);
        // Back to CubeCL's type of the same number.
        let op = ReinterpretCastOp::new(scope.ctx_mut(), number, power);
        scope.register_with_result(&op).into()
    })
}
