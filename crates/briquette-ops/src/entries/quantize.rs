use burn::tensor::{DType, Tensor};

use super::words::pack_words;
use crate::attention::PackedGroups;

/// Numbers that are quantized between the minimum and the maximum of their group (KIVI; Liu et al.,
/// 2024).
#[derive(Clone, Debug)]
pub struct QuantizeInput {
    /// Numbers, `[pages, rows, numbers]`.
    pub x: Tensor<3>,
    /// Numbers of a row that are a group, a divisor of all. Of several groups each fills whole
    /// words.
    pub group: usize,
    /// Bits of a number: 1, 2, 4 or 8.
    pub bits: u8,
    /// Type of scales and minima. They are rounded to it first: numbers are measured by what is
    /// held.
    pub dtype: DType,
}

/// Quantizes by tensor operations: the reference of
/// [`EntryOps::quantize`](super::EntryOps::quantize), which refuses nothing.
pub fn quantize(input: QuantizeInput) -> PackedGroups {
    let QuantizeInput { x, group, bits, dtype } = input;
    let [pages, rows, numbers] = x.dims();
    let groups = numbers / group;
    let top = f64::from((1_u32 << bits) - 1);
    let x = x.cast(DType::F32).reshape([pages, rows, groups, group]);
    let low = x.clone().min_dim(3);
    let scale = (x.clone().max_dim(3) - low.clone()) / top;
    let held = |x: Tensor<4>| x.cast(dtype).cast(DType::F32);
    let (low, scale) = (held(low), held(scale));
    let flat = scale.clone().equal_scalar(0.0);
    let step = scale.clone().mask_fill(flat, 1.0);
    let levels = ((x - low.clone()) / step).round().clamp(0.0, top);

    let words = pack_words(levels.reshape([pages, rows, numbers]).int(), bits);
    let width = words.dims()[2];
    let line = |x: Tensor<4>| x.reshape([pages, rows * groups]).cast(dtype);
    PackedGroups { words: words.reshape([pages, rows * width]), scale: line(scale), min: line(low) }
}
