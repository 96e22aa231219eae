use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use burn::tensor::Device;

/// Calls of a model between two clean-ups of its devices.
const CALLS: usize = 32;

/// Keeps launches as fast as they were in a process that decodes for long, by cleaning the device's
/// memory up now and then.
///
/// CubeCL 0.11 keeps the shapes and numbers of the last 4 096 different launches of a stream in
/// buffers on the device, and searches all buffers of a page at each small allocation. Prompts of
/// many lengths and caches that grow fill it, and a launch takes several times as long. A clean-up
/// empties it. Clones count together.
///
/// Your own loop calls it once per call of the model, but not between making a step ready to be
/// recorded and dropping its recording.
#[derive(Clone, Debug, Default)]
pub struct Upkeep(Arc<AtomicUsize>);

impl Upkeep {
    /// Counts a call of the model, and cleans up at every 32nd.
    pub fn call(&self, device: &Device) {
        self.call_on([device]);
    }

    /// As [`call`](Self::call), of a model on these devices.
    pub fn call_on<'a>(&self, devices: impl IntoIterator<Item = &'a Device>) {
        if self.0.fetch_add(1, Ordering::Relaxed) % CALLS == CALLS - 1 {
            devices.into_iter().for_each(Device::memory_cleanup);
        }
    }
}
