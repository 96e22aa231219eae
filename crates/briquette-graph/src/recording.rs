//! CubeCL's graphs: launches recorded once and replayed.

use burn::{backend::DispatchDevice, tensor::Device};
use cubecl::prelude::Client;

/// Records what is launched on a device.
pub(crate) struct Recorder(Client);

impl Recorder {
    /// Of this device; `None` if it is none of CubeCL's.
    pub(crate) fn of(device: &Device) -> Option<Self> {
        match device.as_dispatch() {
            DispatchDevice::Cube(device) => Some(Self(device.client())),
            _ => None,
        }
    }

    /// Makes ready: what runs from here to the [beginning](Self::begin) leaves the memory that a recording will use.
    pub(crate) fn prepare(&self) -> Result<(), String> {
        self.0.graph_prepare().map_err(|error| error.to_string())
    }

    /// From here on launches are recorded and do not run.
    pub(crate) fn begin(&self) -> Result<(), String> {
        self.0.start_capture().map_err(|error| error.to_string())
    }

    /// Ends the recording and returns it.
    pub(crate) fn end(&self) -> Result<Recording, String> {
        let graph = self.0.stop_capture().map_err(|error| error.to_string())?;
        Ok(Recording(graph))
    }
}

/// Launches that were recorded.
#[derive(Debug)]
pub(crate) struct Recording(cubecl::client::Graph);

impl Recording {
    /// Runs them again.
    ///
    /// # Safety
    /// Every tensor the recording reads or writes still exists, nothing else reads or writes one of them meanwhile, and the
    /// call comes from the thread that recorded.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn replay(&self) -> Result<(), String> {
        // SAFETY: the caller's contract is that of CubeCL.
        unsafe { self.0.replay() }.map_err(|error| error.to_string())
    }
}
