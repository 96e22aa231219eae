//! The operations that KV-cache compression is made of.
//!
//! Each operation is stated once: a file has its input, its output and its reference, which uses
//! Burn's tensor operations and runs on any device. Traits group the operations, and a crate of
//! kernels implements the traits:
//!
//! - [`AttentionOps`]: attention of a prompt, decode attention over every [`KvLayout`], the weights
//!   of a window of queries, rotation;
//! - [`EntryOps`]: a new token of a layer, and the attention its entries receive;
//! - [`SelectOps`]: selection of the entries to keep, and their compaction, ragged or padded;
//! - [`MergeOps`]: nearest rows, weighted sums of rows, merged rows;
//! - [`ClusterOps`]: entries that several tokens share (EMS);
//! - [`ModelOps`]: products with weights, norms and gates, for the model around a cache.
//!
//! [`Ops`] is all of them. [`Reference`] implements them with tensor operations.

mod attention;
mod cluster;
mod cluster_table;
mod constant;
pub mod e4m3;
mod entries;
mod error;
mod evict_limits;
mod expand_clusters;
mod fallbacks;
mod host;
mod inverse;
mod merge;
mod model;
mod ops;
mod product;
mod select;
mod send;
mod unit;

pub use attention::{
    AttentionInput, AttentionOps, AttentionOutput, ClusteredKv, DecodeInput, DecodeOutput, DenseKv,
    HeadPattern, KvLayout, MomentsInput, MomentsOutput, PackedGroups, PackedNumbers, PackedVectors,
    QuantizedKv, RaggedKv, RotaryTables, Scoring, SparseAttentionInput, SparseMap, SparseTiles,
    Tail, Visibility, Window, WindowInput, closest_patterns, minference_candidates, rotate,
    seen_entries,
};
pub use cluster::{
    AssignClustersInput, AssignClustersOutput, ClusterOps, ClusterOrder, EvictClusterInput,
    ExtendInput, ExtendOutput, GlobalLocalInput, MergedRows, ReorderTokensInput,
    ReorderTokensOutput, RowWeightsInput, row_weights,
};
pub use cluster_table::ClusterTable;
pub use constant::{constant_floats, constant_ints, counting};
pub use e4m3::of_e4m3;
pub use entries::{
    AppendColumn, AppendInput, AttentionStatistics, Clustering, CountInput, Entries, EntryOps,
    QuantizeInput, Selection, Split, Statistic, bucketed_width, bucketed_widths, gather_entries,
    gather_positions, gather_rows, gather_scalars, group_mean, iota, offset_per_head,
    outside_window, pack_words, padding_mask, quantize, quantize_fp8, slice_per_head,
    slice_rows_per_head, unpack_words, words_of,
};
pub use error::{OpError, Result};
pub use evict_limits::EvictLimits;
pub use expand_clusters::{expand_clusters, select_entries};
pub use fallbacks::{Fallback, Fallbacks};
pub use host::is_host;
pub use inverse::inverses;
pub use merge::{
    AccumulateInput, EmaInput, EmaOutput, EvictInput, EvictMergeInput, EvictSpreadInput,
    MergeInput, MergeOps, NearestInput, NearestOutput, SlotRows, merge,
};
pub use model::{
    Activation, GatedInput, GatedLinearInput, LinearInput, ModelOps, QuantizedLinearInput,
    QuantizedMatrix, QuantizedParts, RmsNormInput, RmsNormOutput, WeightFormat, all_finite, gated,
    gated_linear_apart, most_likely, rms_norm,
};
pub use ops::{Ops, Reference};
pub use product::precise_product;
pub use select::{PackInput, PadInput, Pool, PoolKind, RobustInput, SelectInput, SelectOps};
pub use send::{note_sends, send};
pub use unit::{norm, unit};
