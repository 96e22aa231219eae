//! CubeCL kernels for attention over compressed KV caches.
//!
//! Each runs on every CubeCL runtime that Burn dispatches to: CUDA, ROCm, Vulkan, Metal, WebGPU and
//! the CPU runtime, with Burn's fusion or without. [`supports`] tells whether a device is one of
//! them; elsewhere there is nothing here to call. A kernel knows no policy: it takes the input that
//! `briquette-ops` states of its operation, and [`Kernels`] implements the traits of that crate.
//!
//! Operations have the families of that crate, and `common` is what several are made of. One
//! operation, one folder: `mod.rs` says how it is computed and what that costs, and checks a call;
//! `backend.rs` is how a call with Burn's tensors reaches the kernel, through Burn's dispatch,
//! which knows the backend of a tensor, and through its fusion, which runs what it has put off
//! first; it makes the outputs and launches the kernels. Where several calls share a launch, or one
//! is long, that is in `launch.rs`. Kernels are in `kernel.rs` or, where tensor cores have a kernel
//! of their own, in `mma.rs` and `portable.rs`. Tensors that reach a launch together are in
//! `operands.rs`, and the geometry of a launch is in `plan.rs`. A `…Problem` is the input of a
//! launch as the host describes it, a `…Blueprint` the compile-time parameters of a kernel. No two
//! files import each other, so nothing that the files of an operation share is in its `mod.rs`.

mod attention;
mod cluster;
mod common;
mod entries;
mod kernels;
mod merge;
mod model;
mod select;

use burn::{backend::DispatchDevice, tensor::Device};

pub use attention::{
    ColumnScoresOutput, FEW_QUERIES, PromptAttention, attention, column_scores, decode, rotate,
    rotate_both, sparse_attention, window_moments, window_weights,
};
pub use cluster::{
    assign_clusters, evict_cluster, extend, global_local, reorder_tokens, row_weights,
    sort_by_cluster,
};
pub use common::buffer;
#[cfg(feature = "persistence")]
pub use common::compiled::keep_compiled;
pub use common::memory::{RowLayout, allocate_apart, bytes_in_use, memory};
pub use entries::{append, count, quantize, quantize_fp8, ranks};
pub use kernels::Kernels;
pub use merge::{accumulate, ema_weights, evict, evict_merging, evict_spreading, merge, nearest};
#[cfg(cubecl_0_12)]
pub use model::{LINEAR_SETTINGS, gated_linear, linear_by};
pub use model::{
    MOST_LINEAR_ROWS, MOST_QUANTIZED_LINEAR_ROWS, dequantize, gated, linear, quantized_linear,
    rms_norm,
};
pub use select::{SelectOutput, compact, pack, pad, robust_scores, select};

/// Whether the kernels run on this device.
pub fn supports(device: &Device) -> bool {
    matches!(device.as_dispatch(), DispatchDevice::Cube(_))
}
