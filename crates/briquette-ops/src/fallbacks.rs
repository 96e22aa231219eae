use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use crate::{OpError, Result};

/// Calls of one operation in which tensor operations took over from a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Name of the operation.
    pub operation: &'static str,
    /// Number of calls.
    pub calls: usize,
    /// Error of the kernel in the last call: the device has no kernels, no kernel computes this
    /// kind of weights, or the call is too large.
    pub reason: OpError,
}

/// Calls that a device could not take, per operation.
#[derive(Debug, Default)]
pub struct Fallbacks(Mutex<BTreeMap<&'static str, Fallback>>);

impl Fallbacks {
    /// Returns the result of a kernel, or, where the device could not take the call, counts the
    /// call and returns the result of `reference`. Any other error is the caller's mistake or the
    /// device's failure, and is returned as it is.
    ///
    /// # Errors
    /// [`OpError`] of the kernel or of the reference.
    pub fn or<T>(&self, result: Result<T>, reference: impl FnOnce() -> Result<T>) -> Result<T> {
        match result {
            Err(reason) if reason.is_of_the_device() => {
                self.count(reason);
                reference()
            }
            result => result,
        }
    }

    /// Returns the fallbacks so far, sorted by the name of the operation.
    pub fn list(&self) -> Vec<Fallback> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn count(&self, reason: OpError) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let operation = reason.operation();
        let calls = all.get(operation).map_or(0, |fallback| fallback.calls) + 1;
        all.insert(operation, Fallback { operation, calls, reason });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_device_lacks_falls_back() {
        let fallbacks = Fallbacks::default();
        let device = OpError::Device { operation: "nearest" };
        let large = OpError::TooLarge { operation: "merge", what: "rows", found: 2, max: 1 };
        let shape = OpError::Shape {
            operation: "merge",
            tensor: "keys",
            found: vec![1],
            expected: vec![2],
        };
        assert_eq!(fallbacks.or(Ok(1), || Ok(2)), Ok(1));
        assert_eq!(fallbacks.or(Err(device.clone()), || Ok(2)), Ok(2));
        assert_eq!(fallbacks.or(Err(device.clone()), || Ok(2)), Ok(2));
        assert_eq!(fallbacks.or(Err(large.clone()), || Ok(3)), Ok(3));
        assert_eq!(fallbacks.or(Err(shape.clone()), || Ok(4)), Err(shape));
        let expected = [
            Fallback { operation: "merge", calls: 1, reason: large },
            Fallback { operation: "nearest", calls: 2, reason: device },
        ];
        assert_eq!(fallbacks.list(), expected);
    }
}
