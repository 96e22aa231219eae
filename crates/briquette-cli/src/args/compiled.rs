//! The folder in which commands keep compiled kernels for each other.

use std::{path::PathBuf, sync::Once};

use anyhow::Result;
use briquette_eval::warnings;
use etcetera::BaseStrategy;

/// Compiled kernels of this version, in the user's cache folder.
fn dir() -> Result<PathBuf> {
    let cache = etcetera::choose_base_strategy()?.cache_dir();
    Ok(cache.join("briquette").join(env!("CARGO_PKG_VERSION")))
}

/// Keeps compiled kernels from the first call on. Where that fails, every command compiles them,
/// and says so.
pub(crate) fn keep() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| {
        let kept = dir().and_then(|dir| Ok(briquette::device::keep_compiled(dir)?));
        let said = |error| format!("kernels are compiled in each command anew: {error:#}");
        warnings::add(kept.err().map(said));
    });
}
