//! Decode steps of a model over a Briquette cache, recorded once and replayed as one dispatch.
//!
//! A decode step of a model hands hundreds of launches to the device, and where batches are small
//! the host is slower with them than the device. [`StepGraph`] runs steps as they are, records one
//! as soon as steps are all alike, and replays it from then on: on CUDA and ROCm as one graph of
//! the driver, on Vulkan, Metal and WebGPU as a list of dispatches that CubeCL encodes again. Where
//! a device has no graphs, and where steps differ, it goes on running them as they are, and [says
//! why](StepGraph::fallback_reason).

mod buffer;
mod error;
mod pins;
mod recording;
mod spare;
mod step;

use burn::tensor::Device;

pub use error::Error;
pub use step::{StepGraph, room_of};

/// Whether steps on this device may be recorded: whether it is one of CubeCL's, in a build that
/// does not fuse operations.
pub fn may_record(device: &Device) -> bool {
    recording::Recorder::of(device).is_some()
}
