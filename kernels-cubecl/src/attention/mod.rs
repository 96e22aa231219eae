//! Attention: of a prompt, of decoded tokens over every layout of keys and values, and of a window
//! of queries; and the rotation of queries and keys.

mod column_sums;
mod decode;
mod prefill;
mod rotary;
mod scoring;
mod sparse;
mod visible;
mod window;

pub use self::{
    column_sums::{ColumnScoresOutput, column_scores},
    decode::{FEW_QUERIES, decode},
    prefill::{PromptAttention, attention},
    rotary::{rotate, rotate_both},
    sparse::sparse_attention,
    window::{window_moments, window_weights},
};
