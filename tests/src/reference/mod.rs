//! Every method once more, in the plainest way: numbers in nested `Vec<f64>`, one sequence, one layer, loops.
//!
//! Nothing here is shared with the library, so that a mistake has to be made twice to go unseen. A batch is
//! one [`LayerCache`](cache) a row: no padding, no masks.

pub mod attention;
pub mod cache;
pub mod methods;

pub use attention::Encoding;
pub use cache::{Budget, LayerCache, Prefill, Settings};
pub use methods::{Method, Pool};

/// `[tokens][head_dim]`: what one head holds of some tokens.
pub type Head = Vec<Vec<f64>>;
