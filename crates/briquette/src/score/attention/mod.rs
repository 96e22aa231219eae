//! Scores by the attention that a token receives or would receive.

mod accumulated;
mod cake;
mod dropkv;
mod ems;
mod expected_attention;
mod finch;
mod non_causal;
mod rkv;
mod roco;
mod window_attention;

pub use accumulated::{AccumulatedAttention, Normalize};
pub use cake::Cake;
pub use dropkv::DropKv;
pub use ems::{Ems, ScoreFrom};
pub use expected_attention::ExpectedAttention;
pub use finch::Finch;
pub use non_causal::NonCausal;
pub use rkv::RKv;
pub use roco::RoCo;
pub use window_attention::{HeadMean, WindowAttention};
