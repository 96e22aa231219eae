//! Decode attention and rotation on the host, over keys and values in their layout: what kernels
//! are elsewhere.

mod call;
mod clustered;
mod entries;
mod layer;
mod packed;
mod rotate;

pub(super) use rotate::rotate;

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
        KvLayout::Dense(kv) => entries::dense(input, kv),
        _ if input.scoring.reads_positions() => Ok(None),
        KvLayout::Ragged(kv) => entries::ragged(input, kv).map(Some),
        KvLayout::Clustered(kv) => layer::attend(input, &clustered::Clusters::read(kv)?).map(Some),
        KvLayout::Quantized(kv) => layer::attend(input, &packed::Pages::read(kv)?).map(Some),
    }
}
