use cubecl::prelude::Client;

/// Multiprocessors of a device that does not say how many it has: those of a large one. A small one
/// adds up a few parts more than it needs; a large one with work for sixteen stood still, and
/// attended to 32,768 tokens in five times the time (H200, Vulkan, `docs/lab/backends.md`).
const UNSAID: usize = 128;

/// Multiprocessors of the device.
pub(crate) fn processors(client: &Client) -> usize {
    known_processors(client).unwrap_or(UNSAID)
}

/// Multiprocessors of the device, if it says how many it has: CUDA and ROCm do, wgpu does not.
pub(crate) fn known_processors(client: &Client) -> Option<usize> {
    client.properties().hardware.num_streaming_multiprocessors.map(|count| count as usize)
}
