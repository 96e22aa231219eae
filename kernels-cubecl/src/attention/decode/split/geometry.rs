use cubecl::prelude::*;

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
    query_heads: usize,
    kv_heads: usize,
    splits: usize,
    #[comptime] heads: usize,
    #[comptime] blocks: usize,
) -> CubeSplit {
    let block = CUBE_POS / splits % blocks;
    let kv = CUBE_POS / splits / blocks;
    let batch = kv / kv_heads;
    let kv_head = kv % kv_heads;
    let group = query_heads / kv_heads;
    let query_head = kv_head * group + block * heads;
    CubeSplit {
        split: CUBE_POS % splits,
        batch,
        kv_head,
        kv,
        query_head,
        heads_left: group - block * heads,
        weight_start: batch * weights.stride(0) + query_head * weights.stride(1),
    }
}
