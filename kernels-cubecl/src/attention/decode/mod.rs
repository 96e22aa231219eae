//! Attention of decoded tokens. Layouts differ in how keys and values are read; all leave parts of
//! a head that one kernel merges.

mod clustered;
mod dense_ragged;
mod merge;
mod quantized;
pub(super) mod split;

use briquette_ops::{DecodeInput, DecodeOutput, KvLayout, Result};

use self::{
    clustered::clustered,
    dense_ragged::{dense, ragged},
    quantized::quantized,
};

/// Most queries per head that [`decode`] takes: it keeps the products of a few in registers and
/// reads keys once for them. More share keys in tiles, in [`attention`](crate::attention()).
pub const FEW_QUERIES: usize = 8;

/// Attention of one query per head, or of a few over a dense layout, over keys and values read as
/// they lie.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, there is nothing to attend
/// to, weights depend on positions that the layout lacks, or the device has no kernels or cannot
/// launch so much.
pub fn decode(input: &DecodeInput) -> Result<DecodeOutput> {
    match &input.kv {
        KvLayout::Dense(kv) => dense(input, kv),
        KvLayout::Ragged(kv) => ragged(input, kv),
        KvLayout::Clustered(kv) => clustered(input, kv),
        KvLayout::Quantized(kv) => quantized(input, kv),
    }
}
