//! Decode attention on the host, over keys and values in their layout: what kernels are elsewhere.

mod call;
mod clustered;
#[cfg(feature = "flex")]
mod entries;
mod layer;
mod packed;
mod rows;

use super::decode::{DecodeInput, DecodeOutput, KvLayout};
use crate::{error::Result, host::is_host};

/// Attention of one query per head; `None` on other devices than the host, and for weights that
/// depend on positions where a layout has none.
pub(super) fn decode(input: &DecodeInput) -> Result<Option<DecodeOutput>> {
    let is_one = input.queries.dims()[2] == 1;
    if !is_host(&input.queries.device()) || !is_one {
        return Ok(None);
    }
    match &input.kv {
        #[cfg(feature = "flex")]
        KvLayout::Dense(kv) => entries::dense(input, kv),
        _ if input.scoring.reads_positions() => Ok(None),
        #[cfg(feature = "flex")]
        KvLayout::Ragged(kv) => entries::ragged(input, kv).map(Some),
        KvLayout::Clustered(kv) => layer::attend(input, &clustered::Clusters::read(kv)?).map(Some),
        KvLayout::Quantized(kv) => layer::attend(input, &packed::Pages::read(kv)?).map(Some),
        #[cfg(not(feature = "flex"))]
        KvLayout::Dense(_) | KvLayout::Ragged(_) => Ok(None),
    }
}
