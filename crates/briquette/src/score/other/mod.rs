//! Scores by position, and by chance.

mod random;
mod recency;

pub use random::Random;
pub use recency::Recency;
