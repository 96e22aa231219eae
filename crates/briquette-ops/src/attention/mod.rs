//! Attention: of a prompt, of decoded tokens over every layout of keys and values, and of a window of queries.

mod decode;
mod ops;
mod prefill;
mod rotary;
mod visibility;
mod weights;
mod window;

pub use decode::{
    ClusteredKv, DecodeInput, DecodeOutput, DenseKv, KvLayout, PackedGroups, QuantizedKv, RaggedKv,
    Tail,
};
pub use ops::AttentionOps;
pub use prefill::{AttentionInput, AttentionOutput};
pub use rotary::{RotaryTables, rotate};
pub use visibility::Visibility;
pub use window::{MomentsInput, MomentsOutput, WindowInput};
