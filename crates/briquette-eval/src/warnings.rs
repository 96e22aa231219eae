//! Warnings of the files that were read, which a command prints behind its work.

use std::{
    collections::BTreeSet,
    mem,
    sync::{Mutex, PoisonError},
};

static WARNINGS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Keeps warnings for [`take`].
pub fn add(warnings: impl IntoIterator<Item = String>) {
    WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).extend(warnings);
}

/// Takes all warnings, each once.
pub fn take() -> BTreeSet<String> {
    mem::take(&mut *WARNINGS.lock().unwrap_or_else(PoisonError::into_inner))
}
