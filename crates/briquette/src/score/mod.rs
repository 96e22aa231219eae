//! Stage one: the importance of each held entry.
//!
//! A scorer says what it observes ([`Observes`]); the attention pass computes just that, and no matrix of
//! queries by keys is kept. Nothing here knows how the rest is reduced.

mod accumulated;
mod best;
mod block_wise;
mod capacity;
mod chunk_attention;
mod compactor;
mod critical;
mod cur;
mod draw;
mod drop_error;
mod entropy_gated;
mod expected_attention;
mod from_first;
mod global_local;
mod inverse;
mod key_difference;
mod key_norm;
mod lag_relative;
mod leverage;
mod query_direction;
mod question_attention;
mod random;
mod recency;
mod reconstruction;
mod redundancy;
mod reread;
mod retrieval;
mod robust;
mod scorer;
mod spec;
mod table;
mod trigonometric;
mod variance;
mod whole_chunks;
mod window;

pub use accumulated::{AccumulatedAttention, Normalize};
pub use block_wise::BlockWise;
pub use capacity::Capacity;
pub use chunk_attention::ChunkAttention;
pub use compactor::Compactor;
pub use critical::Critical;
pub use cur::Cur;
pub(crate) use draw::draw;
pub use drop_error::DropError;
pub use entropy_gated::EntropyGated;
pub use expected_attention::ExpectedAttention;
pub use global_local::{GlobalLocal, ScoreFrom};
pub use key_difference::KeyDifference;
pub use key_norm::KeyNorm;
pub use lag_relative::LagRelative;
pub use leverage::Leverage;
pub use query_direction::QueryDirection;
pub use question_attention::QuestionAttention;
pub use random::Random;
pub use recency::Recency;
pub use reconstruction::ReconstructionAttention;
pub use redundancy::Redundancy;
pub use reread::RereadAttention;
pub use retrieval::{Pick, RetrievalHeads};
pub use robust::RobustAttention;
pub use scorer::Scorer;
pub(crate) use spec::ScorerSpec;
pub use trigonometric::Trigonometric;
pub use variance::WindowVariance;
pub use whole_chunks::WholeChunks;
pub use window::{HeadMean, WindowAttention};

pub use crate::{
    observes::{ObservedHeads, Observes, Repeat},
    ops::{Pool, PoolKind},
    view::{HeldQueries, Wanted, WindowMoments},
};
