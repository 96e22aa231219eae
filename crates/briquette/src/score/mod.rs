//! Stage one: the importance of each entry.
//!
//! A scorer says what it observes ([`AttentionRequest`]); the attention pass computes just that,
//! and no matrix of queries by keys is kept. Nothing here depends on how entries are reduced.

mod attention;
mod keys;
mod other;
mod profiled;
mod scorer;
mod spec;
mod support;
mod two_pass;
mod wrappers;

pub use attention::{
    AccumulatedAttention, Cake, DropKv, Ems, ExpectedAttention, Finch, HeadMean, NonCausal,
    Normalize, RKv, RoCo, ScoreFrom, WindowAttention,
};
pub use keys::{CapKv, Compactor, CurDkv, KeyDiff, Knorm, LagKv, Leverage};
pub use other::{Random, Recency};
pub use profiled::{Pick, QFilter, RetrievalHeads, TriAttention};
pub use scorer::Scorer;
pub(crate) use spec::ScorerSpec;
pub(crate) use support::draw;
pub use two_pass::{KvCompose, KvZip};
pub use wrappers::{BlockWise, ChunkKv, CriticalKv, EntropyGated};

pub use crate::{
    ops::{Pool, PoolKind},
    stage::{AttentionRequest, ObservedHeads, Repeat},
    view::{HeldQueries, Wanted, WindowMoments},
};
