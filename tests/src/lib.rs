//! What the suites in `tests/` share: an independent f64 [`mod@reference`] of every method, the [`backends`] of
//! this build, and scripted [`session`]s that play the same numbers through both.

pub mod backends;
pub mod inputs;
pub mod policy;
pub mod profiles;
pub mod reference;
pub mod session;
