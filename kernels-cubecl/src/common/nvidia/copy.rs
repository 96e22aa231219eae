//! Copies from memory to shared memory that a unit does not wait for.

use cubecl::prelude::*;

use super::call::{Space, call, i32_type, pointer};
use crate::common::tile::mma::Chunk;

/// Begins to copy 16 bytes.
#[cube]
#[allow(unused_variables)]
pub(crate) fn copy_chunk<E: Float>(to: &mut Chunk<E>, from: &Chunk<E>) {
    intrinsic!(|scope| {
        let to = to.value(scope);
        let to = pointer(scope, to, Space::Shared);
        let from = from.value(scope);
        let from = pointer(scope, from, Space::Global);
        call(scope, "llvm.nvvm.cp.async.cg.shared.global.16", &[to, from]);
    })
}

/// Commits the copies that this unit has begun since the last commit: they are waited for together.
#[cube]
pub(crate) fn commit_copies() {
    intrinsic!(|scope| {
        call(scope, "llvm.nvvm.cp.async.commit.group", &[]);
    })
}

/// Waits until no more than `running` commits of this unit's copies run.
#[cube]
#[allow(unused_variables)]
pub(crate) fn wait_for_copies_but(#[comptime] running: u32) {
    let running = running.runtime();
    intrinsic!(|scope| {
        let running = running.read_value(scope);
        let int = i32_type(scope.ctx());
        call(scope, "llvm.nvvm.cp.async.wait.group", &[(running, int)]);
    })
}
