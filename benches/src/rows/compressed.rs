//! One query over a cache whose entries are shared (EMS) or quantized (KIVI). To be filled when the kernels land;
//! `decode/1024-batch-32` is the dense decode that the target is measured against.

use anyhow::Result;

use crate::bench::Bench;

pub(super) fn run(_bench: &mut Bench) -> Result<()> {
    Ok(())
}
