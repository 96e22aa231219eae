use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crate::{Error, Result};

/// A flag that stops every model it was given to, from any thread: between the layers of a prompt,
/// which is then taken back, and between tokens. It counts what they have read until then. Copies
/// are one flag.
///
/// See [`Model::with_interrupt`](crate::Model::with_interrupt).
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    stop: Arc<AtomicBool>,
    read: Arc<AtomicU64>,
}

impl Interrupt {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops what is running, and what is begun later.
    pub fn set(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Lets models run again.
    pub fn clear(&self) {
        self.stop.store(false, Ordering::Relaxed);
    }

    /// Whether the flag is set.
    pub fn is_set(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The flag itself, for code that sets one, such as a handler of signals.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// Tokens of all rows that the models have read: a prompt that is half through the layers
    /// counts half. Replayed steps are not counted.
    pub fn tokens_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Counts tokens that went through one more layer: `passed` of `layers` with it.
    pub(crate) fn count(&self, tokens: usize, passed: usize, layers: usize) {
        let before = |passed: usize| (tokens * passed / layers.max(1)) as u64;
        let more = before(passed) - before(passed.saturating_sub(1));
        self.read.fetch_add(more, Ordering::Relaxed);
    }

    /// # Errors
    /// [`Error::Interrupted`] if it is set.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_set() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_add_up_to_the_tokens() {
        let interrupt = Interrupt::new();
        (1..=3).for_each(|layer| interrupt.count(7, layer, 6));
        assert_eq!(interrupt.tokens_read(), 3);
        (4..=6).for_each(|layer| interrupt.clone().count(7, layer, 6));
        assert_eq!(interrupt.tokens_read(), 7);
    }
}
