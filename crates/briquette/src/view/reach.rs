use burn::tensor::{DType, Tensor};

use crate::{CacheShape, ops::precise_product};

/// Length of each value after the output projection `weight`, `[query_heads · head_dim, hidden]`,
/// in each query head of its kv head: the `norm` of W_O v, `[batch, kv_heads, group, entries]`,
/// f32.
///
/// `norm` reduces the last dimension of `[batch, kv_heads, entries, hidden]` to one number.
pub(crate) fn reach(
    values: Tensor<4>,
    weight: Tensor<2>,
    shape: CacheShape,
    norm: impl Fn(Tensor<4>) -> Tensor<4>,
) -> Tensor<4> {
    /// Maximum number of elements of products at once.
    const BLOCK: usize = 1 << 22;
    let values = values.cast(DType::F32);
    let [batch, heads, columns, channels] = values.dims();
    let (group, hidden) = (shape.group(), weight.dims()[1]);
    let weight = weight.cast(DType::F32).reshape([heads, group, channels, hidden]);
    let block = (BLOCK / (batch * heads * hidden)).clamp(1, columns);
    let blocks = (0..columns).step_by(block).map(|start| {
        let values = values.clone().narrow(2, start, block.min(columns - start));
        let of_member = |member: usize| {
            let weight = weight.clone().narrow(1, member, 1).swap_dims(0, 1);
            norm(precise_product(values.clone(), weight)).swap_dims(2, 3)
        };
        Tensor::cat((0..group).map(of_member).collect(), 2)
    });
    Tensor::cat(blocks.collect(), 3)
}
