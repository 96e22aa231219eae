use burn::tensor::{DType, Tensor};

use super::{AccumulateInput, MergeInput, unit};

/// Sums into slots, and each row's own share.
pub(super) fn merge(
    input: MergeInput,
    accumulate: impl Fn(AccumulateInput) -> Tensor<4>,
) -> (Tensor<4>, Tensor<4>) {
    let MergeInput { keys, values, own, other_keys, other_values, weights, slot, directions } =
        input;
    let (key_type, value_type) = (keys.dtype(), values.dtype());
    let [batch, heads, slots, _] = keys.dims();
    let others = weights.dims()[2];
    let own = own.unsqueeze_dim::<4>(3);
    let sum = |x: Tensor<4>| {
        let (weights, slot) = (weights.clone(), slot.clone());
        accumulate(AccumulateInput { x, weights, slot, span: 1, slots })
    };
    let ones = Tensor::ones([batch, heads, others, 1], (&keys.device(), DType::F32));
    // A row that weighs nothing becomes zero.
    let all = (sum(ones) + own.clone()).clamp_min(f32::MIN_POSITIVE);
    let of = |own_rows: Tensor<4>, others: Tensor<4>| {
        sum(others) + own_rows.cast(DType::F32) * own.clone()
    };
    let values = of(values, other_values) / all.clone();
    let keys = match directions {
        true => unit(of(unit(keys), unit(other_keys))),
        false => of(keys, other_keys) / all,
    };
    (keys.cast(key_type), values.cast(value_type))
}
