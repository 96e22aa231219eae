//! Attention that caches of the same prompt share.

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use burn::tensor::Device;
use web_time::Instant;

use crate::{Result, ops::AttentionOutput, policy::PositionMode};

/// The attention of one layer, computed once for all caches that ask for the same.
#[derive(Debug, Default)]
pub(super) struct SharedAttention {
    clock: Clock,
    known: RefCell<Vec<(Asked, AttentionOutput, Duration)>>,
    /// Time that another cache spent on the attention that was reused since it was last taken.
    pub(super) saved: Cell<Duration>,
}

/// Request by which caches share attention over the same queries, keys and values. An operation
/// that also sums weights or encodes keys may round differently, so such requests are not shared
/// with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) positions: PositionMode,
    pub(super) column_sums: bool,
    pub(super) column_squares: bool,
}

impl SharedAttention {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }

    /// Returns the attention that was computed for the same request, or else calls `compute`.
    pub(super) fn get_or_compute(
        &self,
        asked: Asked,
        compute: impl FnOnce() -> Result<AttentionOutput>,
    ) -> Result<AttentionOutput> {
        let known = self.known.borrow();
        if let Some((_, output, took)) = known.iter().find(|(other, ..)| *other == asked) {
            self.saved.set(*took);
            return Ok(output.clone());
        }
        drop(known);
        let start = self.clock.now();
        let output = compute()?;
        let took = self.clock.now() - start;
        self.known.borrow_mut().push((asked, output.clone(), took));
        Ok(output)
    }
}

/// Clock that waits for the device to finish its work before it tells the time; without a device it
/// does not wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(pub(super) Option<Device>);

impl Clock {
    pub(super) fn now(&self) -> Instant {
        if let Some(device) = &self.0 {
            // What has failed on the device fails whoever waits for it next.
            let _ = device.sync();
        }
        Instant::now()
    }
}
