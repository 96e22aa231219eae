use super::kernel;

/// Numbers of one bin's sums, in shared memory: 4 KiB.
const BIN_NUMBERS: usize = 1024;

/// How the work is shared out.
pub(super) struct Plan {
    pub(super) chunks: usize,
    /// Slots, and what stands before the first by less than a span.
    pub(super) buckets: usize,
    pub(super) of_bin: usize,
    pub(super) bins: usize,
    pub(super) chunks_of_part: usize,
    pub(super) parts: usize,
}

impl Plan {
    pub(super) fn new(rows: usize, channels: usize, span: usize, slots: usize) -> Self {
        let chunks = rows.div_ceil(kernel::CHUNK);
        let buckets = slots + span - 1;
        let of_bin = (BIN_NUMBERS / channels).clamp(1, 64);
        // Parts cost a write and a read of their sums: they are to be fewer than the rows.
        let rows_of_part = (4 * buckets).max(kernel::CHUNK).max(rows.div_ceil(32));
        let chunks_of_part = rows_of_part.div_ceil(kernel::CHUNK).min(chunks).max(1);
        Self {
            chunks,
            buckets,
            of_bin,
            bins: buckets.div_ceil(of_bin),
            chunks_of_part,
            parts: chunks.div_ceil(chunks_of_part),
        }
    }
}
