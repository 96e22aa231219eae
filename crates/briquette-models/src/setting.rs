//! Settings of a configuration that are refused.

use crate::Error;

/// The error of a setting that is known and not supported.
pub(crate) fn unsupported(
    key: &'static str,
    found: impl ToString,
    supported: &'static str,
) -> Error {
    Error::UnsupportedSetting { key, found: found.to_string(), supported }
}

/// The error of a setting that makes no sense.
pub(crate) fn invalid(
    key: &'static str,
    found: impl ToString,
    must_be: impl Into<String>,
) -> Error {
    Error::InvalidSetting { key, found: found.to_string(), must_be: must_be.into() }
}
