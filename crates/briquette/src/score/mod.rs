//! Stage one: the importance of each held entry.
//!
//! A scorer says what it observes ([`Observes`]); the attention pass computes just that, and no matrix of
//! queries by keys is kept. Nothing here knows how the rest is reduced.

mod accumulated;
mod global_local;
mod recency;
mod retrieval;
mod robust;
mod scorer;
mod spec;
mod variance;
mod window;

pub use accumulated::{AccumulatedAttention, Normalize};
pub use global_local::{GlobalLocal, ScoreFrom};
pub use recency::Recency;
pub use retrieval::{Pick, RetrievalHeads};
pub use robust::RobustAttention;
pub use scorer::Scorer;
pub(crate) use spec::ScorerSpec;
pub use variance::WindowVariance;
pub use window::{HeadMean, WindowAttention};

pub use crate::{
    observes::{ObservedHeads, Observes},
    ops::{Pool, PoolKind},
    view::{Wanted, WindowMoments},
};
