//! The attention of burn-lm, not a line changed, with a cache of the same methods that a policy
//! compresses.

#[allow(clippy::duplicate_mod, reason = "one attention with two caches")]
#[path = "../before/attention.rs"]
pub(crate) mod attention;
pub(crate) mod cache;
