//! Stage one: the importance of each entry.
//!
//! A scorer says what it observes ([`AttentionRequest`]); the attention pass computes just that,
//! and no matrix of queries by keys is kept. Nothing here depends on how entries are reduced.

mod attention;
mod dependencies;
mod keys;
mod other;
mod profiled;
mod scorer;
mod spec;
mod support;
mod two_pass;
mod wrappers;

pub use attention::*;
pub use dependencies::Dependencies;
pub use keys::*;
pub use other::*;
pub use profiled::*;
pub use scorer::Scorer;
pub(crate) use spec::ScorerSpec;
pub(crate) use support::draw;
pub use two_pass::*;
pub use wrappers::*;

pub use briquette_ops::{Pool, PoolKind};

pub use crate::{
    stage::{AttentionRequest, ObservedHeads, Repeat},
    view::{HeldQueries, Moments, WindowMoments},
};
