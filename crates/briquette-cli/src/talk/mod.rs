//! A conversation with a model.

pub(crate) mod args;
pub(crate) mod reply;
pub(crate) mod session;
