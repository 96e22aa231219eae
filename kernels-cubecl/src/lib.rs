//! CubeCL kernels for attention over compressed KV caches.
//!
//! Each runs on every CubeCL runtime that Burn dispatches to: CUDA, ROCm, Vulkan, Metal, WebGPU and the CPU runtime,
//! with Burn's fusion or without. [`supports`] tells whether a device is one of them; elsewhere there is nothing here
//! to call. A kernel knows no policy: it takes the input that `briquette-ops` states of its operation, and [`Kernels`]
//! implements the traits of that crate.
//!
//! One operation, one folder: `mod.rs` says how it is computed and what that costs, and checks a
//! call; `extension.rs` is how a call with Burn's tensors reaches the kernel, through Burn's
//! dispatch, which knows the backend of a tensor, and through its fusion, which runs what it has
//! put off first; `launch.rs` makes the outputs and launches the kernels, which are the rest.
//! Operands of several kinds are in `operands.rs`, the way work is shared out in `plan.rs`. No
//! two files import each other, so what the files of an operation share is not in its `mod.rs`.

mod accumulate;
mod attention;
mod check;
mod classify;
mod column_scores;
mod compact;
mod copy;
mod decode;
mod decode_attention;
mod ema;
mod extend;
mod gated;
mod global_local;
mod group;
mod kernels;
mod line;
mod linear;
mod memory;
mod merge;
mod missing;
mod nearest;
mod pack;
mod pad;
mod processors;
mod quantized_attention;
mod regroup;
mod rms_norm;
mod rotary;
mod row_weights;
mod rows;
mod scan;
mod select;
mod shared_attention;
mod sparse_attention;
mod split;
mod tile;
mod tracks;
mod vector;
mod window;

use burn::{backend::DispatchDevice, tensor::Device};

pub use accumulate::accumulate;
pub use attention::{PromptAttention, attention};
pub use classify::classify;
pub use column_scores::{ColumnScoresOutput, column_scores};
pub use compact::compact;
pub use decode::{FEW_QUERIES, decode};
pub use ema::ema_weights;
pub use extend::extend;
pub use gated::gated;
pub use global_local::global_local;
pub use group::group;
pub use kernels::Kernels;
pub use linear::{MOST_LINEAR_ROWS, linear};
pub use memory::{Rows, bytes_in_use};
pub use merge::merge;
pub use nearest::nearest;
pub use pack::pack;
pub use pad::pad;
pub use regroup::regroup;
pub use rms_norm::rms_norm;
pub use rotary::rotate;
pub use row_weights::row_weights;
pub use select::{SelectOutput, select};
pub use sparse_attention::sparse_attention;
pub use window::{window_moments, window_weights};

/// Whether the kernels run on this device.
pub fn supports(device: &Device) -> bool {
    matches!(device.as_dispatch(), DispatchDevice::Cube(_))
}
