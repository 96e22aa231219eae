use burn::tensor::{DType, Tensor};

use crate::constant::constant_floats;
use crate::entries::padding_mask;

/// Similarities of evicted entries to kept ones, to be compared with their moving average (D2O, Eq.
/// 9 to 12).
#[derive(Clone, Debug)]
pub struct EmaInput<'a> {
    /// Similarity of each evicted entry to the kept entry that is most similar to it, f32,
    /// `[batch, kv_heads, evicted]`.
    pub similarity: Tensor<3>,
    /// Number of evicted entries of each batch row and kv head, its last columns; rows first.
    pub counts: &'a [usize],
    /// Threshold of each batch row before this step, `[batch, 1]`, f32; `None` if there is none
    /// yet.
    pub before: Option<Tensor<2>>,
    /// Weight of the new mean in the moving average.
    pub beta: f64,
}

/// Weights of evicted entries in the entries that they are merged into.
#[derive(Clone, Debug)]
pub struct EmaOutput {
    /// Weight of each evicted entry, e to the power of its similarity, f32,
    /// `[batch, kv_heads, evicted]`; zero, which drops it, below the threshold.
    pub weights: Tensor<3>,
    /// Threshold of each batch row after this step, f32, `[batch, 1]`.
    pub threshold: Tensor<2>,
}

impl EmaInput<'_> {
    /// Threshold of a batch row that has evicted nothing so far: no cosine is as low.
    pub const NONE_YET: f64 = -4.0;
}

pub(super) fn ema_weights(input: EmaInput<'_>) -> EmaOutput {
    let EmaInput { similarity, counts, before, beta } = input;
    let device = similarity.device();
    let [batch, heads, most] = similarity.dims();
    let own = Tensor::<3>::ones(similarity.dims(), (&device, DType::F32));
    let missing = counts.iter().map(|&count| most - count);
    let own = own.mask_fill(padding_mask(missing, similarity.dims(), &device), 0.0);

    // The mean of the highest similarities of a row, over all its heads.
    let numbers: Vec<f32> =
        counts.chunks(heads).map(|row| row.iter().sum::<usize>() as f32).collect();
    let numbers = constant_floats("ema counts", numbers, [batch, 1], &device);
    let total = (similarity.clone() * own.clone()).reshape([batch, heads * most]).sum_dim(1);
    let mean = total / numbers.clone().clamp_min(1.0);
    let none = EmaInput::NONE_YET;
    let before = before.unwrap_or_else(|| Tensor::full([batch, 1], none, (&device, DType::F32)));
    let blend = mean.clone() * beta + before.clone() * (1.0 - beta);
    let blend = blend.mask_where(before.clone().lower_scalar(none / 2.0), mean);
    // A row that evicts nothing keeps its threshold.
    let threshold = blend.mask_where(numbers.equal_scalar(0.0), before);
    let limit = threshold.clone().reshape([batch, 1, 1]).expand(similarity.dims());
    let merged = similarity.clone().greater_equal(limit).float().cast(DType::F32) * own;
    EmaOutput { weights: similarity.exp() * merged, threshold }
}
