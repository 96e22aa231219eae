//! CubeCL kernels for attention over compressed KV caches.
//!
//! Each runs on every CubeCL runtime that Burn dispatches to: CUDA, ROCm, Vulkan, Metal, WebGPU and the CPU runtime,
//! with Burn's fusion or without. [`supports`] tells whether a device is one of them; elsewhere there is nothing here
//! to call. A kernel knows no policy.
//!
//! One operation, one folder: `mod.rs` says what it computes, with its shapes, its algorithm and what it costs, and
//! checks a call; `extension.rs` is how a call with Burn's tensors reaches the kernel, through Burn's dispatch, which
//! knows the backend of a tensor, and through its fusion, which runs what it has put off first; `kernel.rs` is the
//! kernel.

mod accumulate;
mod check;
mod error;
mod memory;
mod nearest;
mod ragged_attention;
mod tile;
mod vector;
mod window;

use burn::{backend::DispatchDevice, tensor::Device};

pub use accumulate::{Accumulate, accumulate};
pub use error::{KernelError, Result};
pub use memory::bytes_in_use;
pub use nearest::{Nearest, NearestOutput, nearest};
pub use ragged_attention::{RaggedAttention, RaggedOutput, ragged_attention};
pub use window::{Window, WindowMoments, WindowMomentsOutput, window_moments, window_weights};

/// Whether the kernels run on this device.
pub fn supports(device: &Device) -> bool {
    matches!(device.as_dispatch(), DispatchDevice::Cube(_))
}
