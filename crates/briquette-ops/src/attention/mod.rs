//! Attention of a prompt, of decoded tokens over every layout of keys and values, and of a window
//! of queries.

mod closest;
mod decode;
mod estimate;
#[cfg(feature = "flex")]
mod host;
mod local_window;
mod ops;
mod pattern;
mod prefill;
mod rotary;
mod scoring;
mod sparse;
mod sparsity_mask;
mod tiles;
mod visibility;
mod weights;
mod window;

pub use closest::{closest_patterns, minference_candidates};
pub use decode::{
    ClusteredKv, DecodeInput, DecodeOutput, DenseKv, KvLayout, PackedGroups, PackedNumbers,
    PackedVectors, QuantizedKv, RaggedKv, Tail,
};
pub use local_window::Window;
pub use ops::AttentionOps;
pub use pattern::HeadPattern;
pub use prefill::{AttentionInput, AttentionOutput};
pub use rotary::{RotaryTables, rotate};
pub use scoring::Scoring;
pub use sparse::SparseAttentionInput;
pub use tiles::{SparseMap, SparseTiles};
pub use visibility::{Visibility, seen_entries};
pub use window::{MomentsInput, MomentsOutput, WindowInput};
