//! Checks of shapes, and of parameters, named as in the policy file.

use crate::{CacheShape, Error, Result, ops::Pool};

/// Refuses a parameter, with its value and its range.
pub(crate) fn refuse<T>(
    parameter: &'static str,
    value: impl ToString,
    must_be: impl Into<String>,
) -> Result<T> {
    Err(Error::InvalidParameter { parameter, value: value.to_string(), must_be: must_be.into() })
}

/// Checks that a number is at least 1.
pub(crate) fn count(parameter: &'static str, value: usize) -> Result<()> {
    if value > 0 { Ok(()) } else { refuse(parameter, value, "at least 1") }
}

/// Checks that a number of queries is at least 1 and fits a cache.
pub(crate) fn window(parameter: &'static str, value: usize) -> Result<()> {
    match value {
        1..=MOST_QUERIES => Ok(()),
        _ => refuse(parameter, value, format!("at least 1 and at most {MOST_QUERIES}")),
    }
}

/// Checks that a factor is from 1 to a million.
pub(crate) fn factor(parameter: &'static str, value: f64) -> Result<()> {
    if (1.0..=1e6).contains(&value) {
        return Ok(());
    }
    refuse(parameter, value, "at least 1 and at most 1000000")
}

/// Checks that a number is finite and above 0.
pub(crate) fn positive(parameter: &'static str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { refuse(parameter, value, "above 0") }
}

/// Checks that a number is between 0 and 1.
pub(crate) fn share(parameter: &'static str, value: f64) -> Result<()> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    refuse(parameter, value, "between 0 and 1")
}

/// Checks that pooling, if any, is over an odd number of entries.
pub(crate) fn pool(pool: Option<Pool>) -> Result<()> {
    match pool {
        Some(pool) if pool.kernel % 2 == 0 => refuse("pool.kernel", pool.kernel, "odd"),
        Some(pool) => window("pool.kernel", pool.kernel),
        _ => Ok(()),
    }
}

/// Maximum number of columns: positions have 32 bits on some devices.
pub(crate) const MOST_COLUMNS: usize = i32::MAX as usize;

/// Maximum number of queries of a window, which a cache holds beside its keys.
const MOST_QUERIES: usize = 1 << 16;

/// Checks that the positions of a number of columns fit 32 bits.
pub(crate) fn columns(parameter: &'static str, value: usize) -> Result<()> {
    if value <= MOST_COLUMNS {
        return Ok(());
    }
    refuse(parameter, value, format!("at most {MOST_COLUMNS}"))
}

impl CacheShape {
    /// Checks that no dimension is zero or beyond all models, and that the query heads divide into
    /// the kv heads.
    ///
    /// # Errors
    /// [`Error::InvalidShape`].
    pub fn check(&self) -> Result<()> {
        let Self { layers, query_heads, kv_heads, head_dim } = *self;
        let reason = if layers == 0 || query_heads == 0 || kv_heads == 0 || head_dim == 0 {
            "every dimension must be at least 1"
        } else if query_heads % kv_heads != 0 {
            "query_heads must be a multiple of kv_heads"
        } else if layers > 1 << 16 || query_heads > 1 << 20 || head_dim > 1 << 20 {
            "there may be at most 65536 layers, 1048576 heads, and 1048576 channels a head"
        } else {
            return Ok(());
        };
        Err(Error::InvalidShape { shape: *self, reason })
    }
}
