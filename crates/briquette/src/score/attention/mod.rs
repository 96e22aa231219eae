//! Scores by the attention that a token receives or would receive.

mod accumulated;
mod dropkv;
mod expected_attention;
mod finch;
mod global_local;
mod non_causal;
mod rkv;
mod roco;
mod window_attention;
mod window_variance;

pub use accumulated::{AccumulatedAttention, Normalize};
pub use dropkv::DropError;
pub use expected_attention::ExpectedAttention;
pub use finch::QuestionAttention;
pub use global_local::{GlobalLocal, ScoreFrom};
pub use non_causal::ChunkAttention;
pub use rkv::RKv;
pub use roco::RobustAttention;
pub use window_attention::{HeadMean, WindowAttention};
pub use window_variance::WindowVariance;
