//! Where and with what something was measured.

use briquette::CacheShape;
use serde::Serialize;

use crate::date;

/// The version of Burn this was built with; a test keeps it true.
pub const BURN: &str = "0.22.1";

/// Program, model and device of a measurement, and its date.
#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    /// Version of this program.
    pub briquette: &'static str,
    /// Version of Burn.
    pub burn: &'static str,
    /// The end of the run, in UTC.
    pub date: String,
    /// The folder of the model.
    pub model: String,
    /// The dimensions of its cache.
    pub cache_shape: CacheShape,
    /// The type of weights, activations, keys and values.
    pub dtype: String,
    /// The device.
    pub device: String,
}

impl Environment {
    /// Gathers it, with the date of now.
    pub fn new(model: String, cache_shape: CacheShape, dtype: String, device: String) -> Self {
        Self {
            briquette: env!("CARGO_PKG_VERSION"),
            burn: BURN,
            date: date::now(),
            model,
            cache_shape,
            dtype,
            device,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::BURN;

    #[test]
    fn burn_version_is_true() {
        let lock =
            fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock")).unwrap();
        assert!(lock.contains(&format!("name = \"burn\"\nversion = \"{BURN}\"")));
    }
}
