//! Parts that all four stages share: requests to the attention pass, statistics that it gathers,
//! and file forms.

pub(crate) mod infinite;
mod request;
mod spec;
pub(crate) mod statistics;

pub use request::{AttentionRequest, ObservedHeads, Repeat};
pub(crate) use spec::{built_in, is_default};
