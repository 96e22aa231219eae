//! Scores by position or by chance.

mod random;
mod recency;

pub use random::Random;
pub use recency::Recency;
