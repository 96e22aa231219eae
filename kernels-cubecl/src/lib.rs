//! CubeCL kernels for attention over compressed KV caches.
//!
//! Each runs on every CubeCL runtime that Burn dispatches to: CUDA, ROCm, Vulkan, Metal, WebGPU and the CPU runtime,
//! with Burn's fusion or without. [`supports`] tells whether a device is one of them; elsewhere there is nothing here
//! to call. A kernel knows no policy.
//!
//! One operation, one folder: `mod.rs` says what it computes, with its shapes, its algorithm and what it costs, and
//! checks a call; `extension.rs` is how a call with Burn's tensors reaches the kernel, through Burn's dispatch, which
//! knows the backend of a tensor, and through its fusion, which runs what it has put off first; the kernels and how they are
//! launched are the rest.

mod accumulate;
mod attention;
mod check;
mod classify;
mod column_scores;
mod compact;
mod copy;
mod decode_attention;
mod ema;
mod error;
mod extend;
mod global_local;
mod group;
mod join;
mod lay_out;
mod line;
mod linear;
mod memory;
mod merge;
mod missing;
mod nearest;
mod pack;
mod processors;
mod quantized_attention;
mod regroup;
mod rotary;
mod row_weights;
mod scan;
mod select;
mod shared_attention;
mod split;
mod tile;
mod tracks;
mod vector;
mod window;

use burn::{backend::DispatchDevice, tensor::Device};

pub use accumulate::{Accumulate, accumulate};
pub use attention::{Attention, AttentionOutput, Visibility, attention};
pub use classify::{Classify, MergedRows, classify};
pub use column_scores::{ColumnScores, ColumnScoresOutput, column_scores};
pub use compact::{CompactEntries, MOST_TRACKS, compact};
pub use decode_attention::{DecodeAttention, DecodeOutput, EntryList, decode_attention};
pub use ema::{EmaWeights, ema_weights};
pub use error::{KernelError, Result};
pub use extend::{Extend, Extended, extend};
pub use global_local::{GlobalLocal, global_local};
pub use group::{Groups, group};
pub use join::{Columns, join};
pub use lay_out::{LayOut, lay_out};
pub use linear::{Linear, MOST_LINEAR_ROWS, linear};
pub use memory::{Rows, bytes_in_use};
pub use merge::{Merge, merge};
pub use nearest::{Nearest, NearestOutput, nearest};
pub use pack::{Pack, pack};
pub use quantized_attention::{
    PackedGroups, QuantizedAttention, QuantizedOutput, quantized_attention,
};
pub use regroup::{Regroup, Regrouped, regroup};
pub use rotary::{RotaryTables, rotate};
pub use row_weights::{RowWeights, row_weights};
pub use select::{Select, SelectOutput, select};
pub use shared_attention::{SharedAttention, SharedOutput, shared_attention};
pub use window::{Window, WindowMoments, WindowMomentsOutput, window_moments, window_weights};

/// Whether the kernels run on this device.
pub fn supports(device: &Device) -> bool {
    matches!(device.as_dispatch(), DispatchDevice::Cube(_))
}
