//! The operations that KV-cache compression is made of.
//!
//! Each operation is stated once: a file holds its input, its output and its reference, which is Burn's tensor operations
//! and runs on any device. Traits group them, and a crate of kernels implements the traits:
//!
//! - [`AttentionOps`]: attention of a prompt, decode attention over every [`KvLayout`], the weights of a window of queries,
//!   rotation;
//! - [`SelectOps`]: which entries stay, and their move into less room, ragged or padded;
//! - [`MergeOps`]: the nearest of some rows, weighted sums of rows, merged rows;
//! - [`ClusterOps`]: entries that several tokens share (EMS);
//! - [`ModelOps`]: products with weights, norms and gates, for the model around a cache.
//!
//! [`Ops`] is all of them. [`Reference`] answers with tensor operations.

mod attention;
mod cluster;
mod constant;
mod entries;
mod error;
mod fallbacks;
mod laid_out;
mod merge;
mod model;
mod ops;
mod product;
mod select;
mod table;
mod unit;

pub use attention::{
    AttentionInput, AttentionOps, AttentionOutput, ClusteredKv, DecodeInput, DecodeOutput, DenseKv,
    HeadPattern, KvLayout, MomentsInput, MomentsOutput, PackedGroups, QuantizedKv, RaggedKv,
    RotaryTables, SparseAttentionInput, SparseMap, SparseTiles, Tail, Visibility, WindowInput,
    closest_patterns, rotate,
};
pub use cluster::{
    ClassifyInput, ClassifyOutput, ClusterOps, ExtendInput, ExtendOutput, GlobalLocalInput, Groups,
    MergedRows, RegroupInput, RegroupOutput, RowWeightsInput, row_weights,
};
pub use constant::{constant_floats, constant_ints, counting};
pub use entries::{
    AttentionStatistics, Entries, Selection, Sharing, Split, Statistic, aligned, aligned_rows,
    counted, few_widths, few_widths_from, fillers, gather_entries, gather_positions, gather_rows,
    gather_scalars, group_mean, moved, outside_window,
};
pub use error::{OpError, Result};
pub use fallbacks::{Fallback, Fallbacks};
pub use laid_out::{laid_out, select_entries};
pub use merge::{
    AccumulateInput, EmaInput, EmaOutput, MergeInput, MergeOps, NearestInput, NearestOutput, merge,
};
pub use model::{
    Activation, GatedInput, LinearInput, ModelOps, RmsNormInput, RmsNormOutput, gated, rms_norm,
};
pub use ops::{Ops, Reference};
pub use product::precise_product;
pub use select::{PackInput, PadInput, Pool, PoolKind, SelectInput, SelectOps};
pub use table::Table;
pub use unit::{norm, unit};
