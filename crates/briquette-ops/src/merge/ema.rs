use burn::tensor::{DType, Tensor};

use crate::constant::constant_floats;
use crate::entries::fillers;

/// Similarities of evicted entries, which a moving average of them is held against (D2O, Eq. 9
/// to 12).
#[derive(Clone, Debug)]
pub struct EmaInput<'a> {
    /// How like each evicted entry is to the kept one that it is most like, f32,
    /// `[batch, kv_heads, evicted]`.
    pub similarity: Tensor<3>,
    /// How many are evicted of each batch row and kv head, the last, rows first.
    pub counts: &'a [usize],
    /// The threshold each batch row had, `[batch, 1]`, f32, if there was one.
    pub before: Option<Tensor<2>>,
    /// The weight of the newest mean.
    pub beta: f64,
}

/// The weights of evicted entries in those that they are merged into.
#[derive(Clone, Debug)]
pub struct EmaOutput {
    /// Zero drops an entry, f32, `[batch, kv_heads, evicted]`.
    pub weights: Tensor<3>,
    /// The threshold each batch row has now, f32, `[batch, 1]`.
    pub threshold: Tensor<2>,
}

/// The threshold of a row that has evicted nothing so far: no cosine is as low.
const NONE_YET: f64 = -4.0;

pub(super) fn ema_weights(input: EmaInput<'_>) -> EmaOutput {
    let EmaInput { similarity, counts, before, beta } = input;
    let device = similarity.device();
    let [batch, heads, most] = similarity.dims();
    let own = Tensor::<3>::ones(similarity.dims(), (&device, DType::F32));
    let missing = counts.iter().map(|&count| most - count);
    let own = own.mask_fill(fillers(missing, similarity.dims(), &device), 0.0);

    // The mean of the highest similarities of a row, over all its heads.
    let numbers: Vec<f32> =
        counts.chunks(heads).map(|row| row.iter().sum::<usize>() as f32).collect();
    let numbers = constant_floats("ema counts", numbers, [batch, 1], &device);
    let total = (similarity.clone() * own.clone()).reshape([batch, heads * most]).sum_dim(1);
    let mean = total / numbers.clone().clamp_min(1.0);
    let before =
        before.unwrap_or_else(|| Tensor::full([batch, 1], NONE_YET, (&device, DType::F32)));
    let blend = mean.clone() * beta + before.clone() * (1.0 - beta);
    let blend = blend.mask_where(before.clone().lower_scalar(NONE_YET / 2.0), mean);
    // A row that evicts nothing keeps its threshold.
    let threshold = blend.mask_where(numbers.equal_scalar(0.0), before);
    let limit = threshold.clone().reshape([batch, 1, 1]).expand(similarity.dims());
    let merged = similarity.clone().greater_equal(limit).float().cast(DType::F32) * own;
    EmaOutput { weights: similarity.exp() * merged, threshold }
}
