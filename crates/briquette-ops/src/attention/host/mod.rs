//! Decode attention on the host, over keys and values in their layout: what kernels are elsewhere.

mod clustered;
mod layer;
mod packed;
mod rows;

use super::decode::{DecodeInput, DecodeOutput, KvLayout};
use crate::{error::Result, host::is_host};

/// Attention of one query per head over entries that tokens share, or over pages; `None` on other
/// devices than the host, for weights that depend on positions, which these layouts do not have,
/// and for other layouts, which Burn's tensor operations take as they lie.
pub(super) fn decode(input: &DecodeInput) -> Result<Option<DecodeOutput>> {
    let is_one = input.queries.dims()[2] == 1;
    if !is_host(&input.queries.device()) || !is_one || input.scoring.reads_positions() {
        return Ok(None);
    }
    match &input.kv {
        KvLayout::Clustered(kv) => layer::attend(input, &clustered::Clusters::read(kv)?).map(Some),
        KvLayout::Quantized(kv) => layer::attend(input, &packed::Pages::read(kv)?).map(Some),
        KvLayout::Dense(_) | KvLayout::Ragged(_) => Ok(None),
    }
}
