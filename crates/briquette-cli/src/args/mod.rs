//! Options that several commands share.

pub(crate) mod batch;
#[cfg(feature = "persistence")]
pub(crate) mod compiled;
pub(crate) mod defaults;
pub(crate) mod depths;
pub(crate) mod haystack;
pub(crate) mod inputs;
pub(crate) mod jobs;
pub(crate) mod model;
pub(crate) mod path;
pub(crate) mod policies;
pub(crate) mod policy_text;
pub(crate) mod profile;
pub(crate) mod prompt;
pub(crate) mod resume;
pub(crate) mod sampling;
pub(crate) mod size;
pub(crate) mod template;
pub(crate) mod text;
pub(crate) mod windows;
