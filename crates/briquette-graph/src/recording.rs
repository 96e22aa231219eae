//! CubeCL's graphs: launches recorded once and replayed.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread,
    time::Duration,
};

use briquette_kernels::buffer::FUSES;
use burn::{backend::DispatchDevice, tensor::Device};
use cubecl::{MemoryScope, future::block_on, prelude::Client};

/// Time for threads that have waited for the device to see that it is done.
const WAKING: Duration = Duration::from_millis(10);

/// Records what is launched on a device.
pub(crate) struct Recorder(Client);

impl Recorder {
    /// Of this device; `None` if it is none of CubeCL's, or this build [fuses](FUSES).
    pub(crate) fn of(device: &Device) -> Option<Self> {
        match device.as_dispatch() {
            DispatchDevice::Cube(device) if !FUSES => Some(Self(device.client())),
            _ => None,
        }
    }

    /// Makes ready: what runs from here to the [recording](Self::record) leaves the memory that it
    /// will use.
    ///
    /// All streams finish first: CubeCL 0.11 gives memory back as it makes ready, and launches that
    /// are under way may still use it.
    pub(crate) fn prepare(&self) -> Result<(), String> {
        let prepared = self.alone(|| {
            finish(&self.0);
            self.0.graph_prepare().map_err(|error| error.to_string())
        });
        prepared.flatten()
    }

    /// Ends what was made ready, and records nothing.
    pub(crate) fn give_up(&self) {
        drop(self.0.stop_capture());
    }

    /// Runs `work` on the device's own thread, in the stream of the caller. The calls of all other
    /// threads wait there for their turn until it has returned.
    pub(crate) fn alone<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, String> {
        let mut found = None;
        let ran = self.0.exclusive(|| found = Some(catch_unwind(AssertUnwindSafe(work))));
        match (found, ran) {
            (Some(Ok(done)), _) => Ok(done),
            (Some(Err(panic)), _) => resume_unwind(panic),
            (None, Err(error)) => Err(error.to_string()),
            (None, Ok(())) => Err("the device's thread has ended".to_owned()),
        }
    }

    /// Records what `launch` launches, none of which runs, and returns what it returns.
    ///
    /// Nothing else comes in between: on CUDA an allocation or a wait of another thread would end
    /// the recording, and fail itself. `launch` has run [alone](Self::alone) before, so that the
    /// device's thread has sent what it sends once.
    pub(crate) fn record<T: Send>(
        &self,
        launch: impl FnOnce() -> Result<T, String> + Send,
    ) -> Result<(Recording, T), String> {
        self.alone(|| record_alone(&self.0, launch)).flatten()
    }
}

fn record_alone<T>(
    client: &Client,
    launch: impl FnOnce() -> Result<T, String>,
) -> Result<(Recording, T), String> {
    settle(client);
    client.start_capture().map_err(|error| error.to_string())?;
    let launched = catch_unwind(AssertUnwindSafe(launch));
    // Whatever has happened, launches are to run again.
    let graph = client.stop_capture();
    let launched = launched.unwrap_or_else(|panic| Err(message(panic.as_ref())))?;
    let graph = graph.map_err(|error| error.to_string())?;
    Ok((Recording(graph), launched))
}

/// Lets all streams of the device finish.
fn finish(client: &Client) {
    for report in client.memory_report(MemoryScope::Device).streams {
        // What fails here is said to those who read what it was to write.
        drop(report.stream.executes(|| block_on(client.sync())));
    }
}

/// Lets all streams of the device finish, and those who wait for them return: nobody begins to wait
/// while the device is taken, and on CUDA nobody may while a stream records.
fn settle(client: &Client) {
    finish(client);
    thread::sleep(WAKING);
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the step panicked: {}", text.unwrap_or("no message"))
}

/// Launches that were recorded.
#[derive(Debug)]
pub(crate) struct Recording(cubecl::client::Graph);

impl Recording {
    /// Runs them again.
    ///
    /// # Safety
    /// Every tensor the recording reads or writes still exists, nothing else reads or writes one of
    /// them meanwhile, and the call comes from the thread whose stream it was recorded in.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn replay(&self) -> Result<(), String> {
        // SAFETY: the caller's contract is that of CubeCL.
        unsafe { self.0.replay() }.map_err(|error| error.to_string())
    }
}
