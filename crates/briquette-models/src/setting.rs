//! Settings of a configuration that are refused.

use crate::{Error, Result, shown::shown};

/// The error of a setting that is known and not supported.
pub(crate) fn unsupported(
    key: &'static str,
    found: impl ToString,
    supported: &'static str,
) -> Error {
    Error::UnsupportedSetting { key, found: shown(found), supported }
}

/// The error of two keys that say two things, of which one would be ignored.
pub(crate) fn contradiction(
    key: &'static str,
    found: impl ToString,
    other: &'static str,
    there: impl ToString,
) -> Error {
    Error::Contradiction { key, found: shown(found), other, there: shown(there) }
}

/// The error of a setting that makes no sense.
pub(crate) fn invalid(
    key: &'static str,
    found: impl ToString,
    must_be: impl Into<String>,
) -> Error {
    Error::InvalidSetting { key, found: shown(found), must_be: must_be.into() }
}

/// Refuses what is not above zero or is no number.
pub(crate) fn check_positive_number(key: &'static str, found: f64) -> Result<()> {
    if found.is_finite() && found > 0.0 {
        Ok(())
    } else {
        Err(invalid(key, found, "a positive number"))
    }
}

/// Refuses zero.
pub(crate) fn check_positive(key: &'static str, found: usize) -> Result<()> {
    if found == 0 { Err(invalid(key, 0, "at least 1")) } else { Ok(()) }
}
