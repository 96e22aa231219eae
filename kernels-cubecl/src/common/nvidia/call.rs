//! Calls of LLVM's intrinsics.

use cubecl::ir::{
    Scope,
    dialect::general::ReinterpretCastOp,
    pliron::{
        builtin::types::{FP32Type, IntegerType, Signedness},
        context::Context,
        r#type::{TypeHandle, Typed},
        value::Value,
    },
};
use pliron_llvm::{
    op_interfaces::CastOpInterface,
    ops::{AddrSpaceCastOp, CallIntrinsicOp},
    types::{FuncType, PointerType, VoidType},
};

/// An integer of 32 bits, as LLVM has it.
pub(super) fn i32_type(ctx: &Context) -> TypeHandle {
    IntegerType::get(ctx, 32, Signedness::Signless).into()
}

/// Calls an intrinsic with arguments that will have these types.
pub(super) fn call(scope: &Scope, name: &str, arguments: &[(Value, TypeHandle)]) {
    let nothing = VoidType::get(scope.ctx()).into();
    scope.register(&call_of(scope, name, arguments, nothing));
}

/// The same of one that takes a number of 32 bits and gives another.
pub(super) fn call_for_number(scope: &Scope, name: &str, x: Value) -> Value {
    let number = x.get_type(scope.ctx());
    let of_llvm = FP32Type::get(scope.ctx()).into();
    let found = scope.register_with_result(&call_of(scope, name, &[(x, of_llvm)], of_llvm));
    // Back to CubeCL's type of the same number.
    scope.register_with_result(&ReinterpretCastOp::new(scope.ctx_mut(), number, found))
}

fn call_of(
    scope: &Scope,
    name: &str,
    arguments: &[(Value, TypeHandle)],
    result: TypeHandle,
) -> CallIntrinsicOp {
    let (values, types): (Vec<_>, Vec<_>) = arguments.iter().copied().unzip();
    let function = FuncType::get(scope.ctx(), result, types, false);
    CallIntrinsicOp::new(scope.ctx_mut(), name.to_string().into(), function, values)
}

/// Part of memory that a pointer points into.
#[derive(Clone, Copy)]
pub(super) enum Space {
    Global = 1,
    Shared = 3,
}

/// The pointer into this part of memory, and its type.
pub(super) fn pointer(scope: &Scope, value: Value, space: Space) -> (Value, TypeHandle) {
    let kind = PointerType::get(scope.ctx(), space as u32).into();
    let op = AddrSpaceCastOp::new(scope.ctx_mut(), value, kind);
    (scope.register_with_result(&op), kind)
}
