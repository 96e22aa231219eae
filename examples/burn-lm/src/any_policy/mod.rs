//! The attention of burn-lm, changed so that policies see the queries.

pub(crate) mod attention;
pub(crate) mod cache;
