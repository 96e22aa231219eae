//! Decode attention on the host, over keys and values in their layout: what kernels are elsewhere.

mod clustered;
mod layer;
mod packed;
mod rows;

use super::decode::{DecodeInput, DecodeOutput, KvLayout};
use crate::{error::Result, host::is_host};

/// Attention of one query per head over entries that tokens share, or over pages; `None` on other
/// devices than the host, and for other layouts, which Burn's tensor operations take as they lie.
pub(super) fn decode(input: &DecodeInput) -> Result<Option<DecodeOutput>> {
    if !is_host(&input.queries.device()) || input.queries.dims()[2] != 1 {
        return Ok(None);
    }
    match &input.kv {
        KvLayout::Clustered(kv) => layer::attend(input, &clustered::Clusters::read(kv)?).map(Some),
        KvLayout::Quantized(kv) => layer::attend(input, &packed::Pages::read(kv)?).map(Some),
        KvLayout::Dense(_) | KvLayout::Ragged(_) => Ok(None),
    }
}
