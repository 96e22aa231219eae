//! Stage three: evicting or merging the entries that are not kept.

mod ema_merge;
mod evict;
mod evict_then_merge;
mod gaussian_merge;
mod host;
mod reducer;
mod spec;
mod split;
mod value_merge;

pub use ema_merge::{Compare, EmaMerge, EmaWeights, Threshold};
pub use evict::Evict;
pub use evict_then_merge::{EvictThenMerge, MergeWeights, Redundancy, Rotate};
pub use gaussian_merge::{GaussianMerge, Pivot, Sigma};
pub use reducer::{InPlace, Reduced, Reducer};
pub(crate) use spec::ReducerSpec;
pub use value_merge::ValueMerge;
