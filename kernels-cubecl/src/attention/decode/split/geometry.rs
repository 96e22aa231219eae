use cubecl::prelude::*;

/// Heads of a batch row, and splits of each kv head.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct SplitCounts {
    pub(crate) query_heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) splits: usize,
}

/// Part of the tokens of a kv head that one cube of 64 units has, for some of its query heads.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct CubeSplit {
    /// Index of the split.
    pub(crate) split: usize,
    pub(crate) batch: usize,
    pub(crate) kv_head: usize,
    /// Index of the kv head among those of all batch rows.
    pub(crate) kv: usize,
    /// First query head of the cube.
    pub(crate) query_head: usize,
    /// Query heads of the kv head from that one on.
    pub(crate) heads_left: usize,
    /// Start of the first query head's weights, `[batch, query_heads, columns]`.
    pub(crate) weight_start: usize,
}

/// The split of this cube: `blocks` cubes have the query heads of a kv head, `heads` each.
#[cube]
pub(crate) fn cube_split(
    weights: &Tensor<f32>,
    counts: &SplitCounts,
    #[comptime] heads: usize,
    #[comptime] blocks: usize,
) -> CubeSplit {
    let block = CUBE_POS / counts.splits % blocks;
    let kv = CUBE_POS / counts.splits / blocks;
    let batch = kv / counts.kv_heads;
    let kv_head = kv % counts.kv_heads;
    let group = counts.query_heads / counts.kv_heads;
    let query_head = kv_head * group + block * heads;
    CubeSplit {
        split: CUBE_POS % counts.splits,
        batch,
        kv_head,
        kv,
        query_head,
        heads_left: group - block * heads,
        weight_start: batch * weights.stride(0) + query_head * weights.stride(1),
    }
}
