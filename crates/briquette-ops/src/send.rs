//! Numbers that the host sends to a device, which must not be while a step is recorded: a replay
//! would send the same again.

use std::cell::Cell;

use burn::tensor::{Tensor, TensorCreationOptions, TensorData, kind::Basic};

thread_local! {
    /// The first numbers that were sent since somebody has begun to take note in this thread.
    static NOTED: Cell<Option<Noted>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
enum Noted {
    Nothing,
    First(&'static str),
}

/// Returns a tensor of these numbers, which are sent to its device for this `purpose`.
///
/// # Panics
/// As [`Tensor::from_data`].
pub fn send<const D: usize, K: Basic>(
    purpose: &'static str,
    data: TensorData,
    options: impl Into<TensorCreationOptions>,
) -> Tensor<D, K> {
    if let Some(Noted::Nothing) = NOTED.get() {
        NOTED.set(Some(Noted::First(purpose)));
    }
    Tensor::from_data(data, options)
}

/// Runs what is recorded, and returns the purpose of the first numbers that [`send`] sends from
/// this thread meanwhile, if there were any. What sends by other ways is not noted.
pub fn note_sends<T>(run: impl FnOnce() -> T) -> (T, Option<&'static str>) {
    /// Ends it where `run` panics too.
    struct End(Option<Noted>);
    impl Drop for End {
        fn drop(&mut self) {
            NOTED.set(self.0);
        }
    }
    let end = End(NOTED.replace(Some(Noted::Nothing)));
    let done = run();
    let first = match NOTED.get() {
        Some(Noted::First(purpose)) => Some(purpose),
        _ => None,
    };
    drop(end);
    (done, first)
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use burn::tensor::Device;

    use super::*;
    use crate::constant_ints;

    #[test]
    fn what_is_sent_is_noted() {
        let device = Device::flex();
        let list = || drop(constant_ints("of a test", vec![3, 9], [2], &device));
        let other = || drop(send::<1, burn::tensor::Int>("other", [1].into(), &device));
        assert_eq!(note_sends(list).1, Some("of a test"));
        // The device has it.
        assert_eq!(note_sends(list).1, None);
        let both = || {
            list();
            other();
            let inner = note_sends(other).1;
            list();
            inner
        };
        assert_eq!(note_sends(both), (Some("other"), Some("other")));
        drop(catch_unwind(|| note_sends(|| panic!("on purpose"))));
        assert!(NOTED.get().is_none());
    }
}
