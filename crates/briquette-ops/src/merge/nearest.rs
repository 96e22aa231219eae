use burn::tensor::{DType, Int, Tensor};

use crate::{
    constant::counting,
    entries,
    product::{Precision, product},
    unit::unit,
};

/// Rows, and other rows among which each has its most similar one.
#[derive(Clone, Debug)]
pub struct NearestInput {
    /// Pairs of `[batch, kv_heads, from, head_dim]` and `[batch, kv_heads, to, head_dim]`. The
    /// similarity of two rows is the product of the cosines of all pairs; that of a zero vector
    /// is 0.
    pub pairs: Vec<(Tensor<4>, Tensor<4>)>,
    /// Number of first rows of `to` that are padding, per batch row and kv head; they are nobody's
    /// most similar row.
    pub padding: Vec<usize>,
}

/// The most similar other row of each row.
#[derive(Clone, Debug)]
pub struct NearestOutput {
    /// Similarity of each row to its most similar one, `[batch, kv_heads, from]`, f32, at most 1.
    pub similarity: Tensor<3>,
    /// Index of the most similar row, the first of equals, `[batch, kv_heads, from]`.
    pub index: Tensor<3, Int>,
}

/// Elements of one block of similarities: 4 Mi, so 16 MiB, however many rows.
const BLOCK_NUMBERS: usize = 1 << 22;

/// Compares blocks of rows with all others: about [`BLOCK_NUMBERS`] similarities exist at a time,
/// but those of 16 rows at least.
pub(super) fn nearest(input: NearestInput) -> NearestOutput {
    let NearestInput { pairs, padding } = input;
    let [batch, heads, from, _] = pairs[0].0.dims();
    let to = pairs[0].1.dims()[2];
    let device = pairs[0].0.device();
    // Who is merged with whom hangs on it, whatever the type of the keys.
    let precision = Precision::of(&[DType::F32], &device);
    let pairs: Vec<(Tensor<4>, Tensor<4>)> =
        pairs.into_iter().map(|(a, b)| (unit(a), unit(b).swap_dims(2, 3))).collect();

    let columns = counting(0..to, &device).reshape([1, 1, 1, to]);
    let mask = padding.iter().any(|&padding| padding > 0).then(|| {
        entries::padding_mask(padding.iter().copied(), [batch, heads, to], &device)
            .unsqueeze_dim::<4>(2)
    });
    let block = (BLOCK_NUMBERS / (batch * heads * to)).clamp(16, 4096).min(from);
    let mut similarities = Vec::new();
    let mut indices = Vec::new();
    for start in (0..from).step_by(block) {
        let rows = block.min(from - start);
        let shape = [batch, heads, rows, to];
        let similarity = pairs
            .iter()
            .map(|(a, b)| product(a.clone().narrow(2, start, rows), b.clone(), precision))
            .reduce(|a, b| a * b);
        let Some(mut similarity) = similarity else { continue };
        // Rounding must not make two equal vectors more than equal.
        similarity = similarity.clamp_max(1.0);
        if let Some(mask) = &mask {
            similarity = similarity.mask_fill(mask.clone().expand(shape), -2.0);
        }
        let best = similarity.clone().max_dim(3);
        // The first of equals, on every backend.
        let index = columns
            .clone()
            .expand(shape)
            .mask_fill(similarity.lower(best.clone().expand(shape)), to as i64)
            .min_dim(3);
        similarities.push(best.reshape([batch, heads, rows]));
        indices.push(index.reshape([batch, heads, rows]));
    }
    NearestOutput { similarity: Tensor::cat(similarities, 2), index: Tensor::cat(indices, 2) }
}
