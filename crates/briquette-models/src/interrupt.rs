use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::{Error, Result};

/// A flag that stops every model it was given to, from any thread: between the layers of a prompt,
/// which is then taken back, and between tokens. Copies are one flag.
///
/// See [`Model::with_interrupt`](crate::Model::with_interrupt).
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops what is running, and what is begun later.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Lets models run again.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether the flag is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag itself, for code that sets one, such as a handler of signals.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// # Errors
    /// [`Error::Interrupted`] if it is set.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_set() { Err(Error::Interrupted) } else { Ok(()) }
    }
}
