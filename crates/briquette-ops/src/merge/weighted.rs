use burn::tensor::{DType, Int, Tensor};

use super::accumulate::AccumulateInput;
use crate::{error::Result, unit::unit};

/// Rows, and other rows that are merged into them.
#[derive(Clone, Debug)]
pub struct MergeInput {
    /// Keys of the rows, `[batch, kv_heads, rows, head_dim]`.
    pub keys: Tensor<4>,
    /// Their values, `[batch, kv_heads, rows, value_dim]`.
    pub values: Tensor<4>,
    /// Their own weights, `[batch, kv_heads, rows]`, f32, not below zero.
    pub own: Tensor<3>,
    /// Keys of the other rows, `[batch, kv_heads, others, head_dim]`, of the type of `keys`.
    pub other_keys: Tensor<4>,
    /// Their values, `[batch, kv_heads, others, value_dim]`, of the type of `values`.
    pub other_values: Tensor<4>,
    /// Weights of the other rows, `[batch, kv_heads, others]`, f32, not below zero; zero drops a
    /// row.
    pub weights: Tensor<3>,
    /// Index of the row that each other row is merged into, `[batch, kv_heads, others]`.
    pub slot: Tensor<3, Int>,
    /// Whether keys are merged as directions: each key is scaled to unit length before, and each
    /// merged key after.
    pub directions: bool,
}

/// Merges rows by weighted sums into slots, which `accumulate` computes, to which the weighted rows
/// themselves are added; a row that nothing goes to stays as it is: the reference of
/// [`MergeOps::merge`](crate::MergeOps::merge).
///
/// # Errors
/// As `accumulate`.
pub fn merge(
    input: MergeInput,
    accumulate: impl Fn(AccumulateInput) -> Result<Tensor<4>>,
) -> Result<(Tensor<4>, Tensor<4>)> {
    let MergeInput { keys, values, own, other_keys, other_values, weights, slot, directions } =
        input;
    let key_type = keys.dtype();
    let [batch, heads, slots, _] = keys.dims();
    let others = weights.dims()[2];
    let own = own.unsqueeze_dim::<4>(3);
    let sum = |x: Tensor<4>| {
        let (weights, slot) = (weights.clone(), slot.clone());
        accumulate(AccumulateInput { x, weights, slot, span: 1, slots })
    };
    let ones = Tensor::ones([batch, heads, others, 1], (&keys.device(), DType::F32));
    let comes = sum(ones)?;
    let stays = comes.clone().lower_equal_scalar(0.0);
    let all = (comes + own.clone()).clamp_min(f32::MIN_POSITIVE);
    let of = |own_rows: Tensor<4>, others: Tensor<4>| {
        Ok(sum(others)? + own_rows.cast(DType::F32) * own.clone())
    };
    let or_own = |merged: Tensor<4>, own_rows: Tensor<4>| {
        let stays = stays.clone().expand(merged.dims());
        merged.cast(own_rows.dtype()).mask_where(stays, own_rows)
    };
    let merged = of(values.clone(), other_values)? / all.clone();
    let values = or_own(merged, values);
    let keys = match directions {
        true => {
            let keys = unit(keys);
            let merged = unit(of(keys.clone(), unit(other_keys))?);
            or_own(merged, keys.cast(key_type))
        }
        false => or_own(of(keys.clone(), other_keys)? / all, keys),
    };
    Ok((keys, values))
}
