use burn::tensor::{FloatDType, Int, Tensor};

use super::best::{self, SelectInput};
use crate::{constant::constant_floats, entries::group_mean, error::Result};

/// Attention that entries received, and how many of the unsteadiest come first (RoCo).
#[derive(Clone, Debug)]
pub struct RobustInput<'a> {
    /// Sum of the weights that each entry received, of heads or of the query heads that share them,
    /// `[batch, n · kv_heads, entries]`, f32.
    pub sums: Tensor<3>,
    /// Sum of the squares of these weights, of the same shape.
    pub squares: Tensor<3>,
    /// Position of each entry, in any order, `[batch, kv_heads, entries]`, −1 at padding.
    pub positions: Tensor<3, Int>,
    /// Tokens seen by each batch row; `None` where the last of them is among the entries of each
    /// head.
    pub seen: Option<&'a [usize]>,
    /// Number of entries with the highest deviation that come first, per batch row and kv head,
    /// rows first.
    pub keep: &'a [usize],
}

impl RobustInput<'_> {
    /// Number that the scores of the entries that come first are raised by: a mean weight is at
    /// most 1.
    pub const ABOVE: f32 = 2.0;
}

/// Mean weights, raised for the entries with the highest deviations and for those equal to the last
/// of them; what stands at padding does not matter.
pub(super) fn robust_scores(input: RobustInput<'_>) -> Result<Tensor<3>> {
    let RobustInput { sums, squares, positions, seen, keep } = input;
    let dims @ [batch, heads, entries] = positions.dims();
    let (device, of_queries) = (sums.device(), sums.dims());
    let padding = positions.clone().lower_elem(0);
    let positions = positions.cast(FloatDType::F32);
    let seen = match seen {
        Some(seen) => {
            let seen = seen.iter().map(|&seen| seen as f32).collect();
            constant_floats("queries seen", seen, [batch, 1, 1], &device)
        }
        None => positions.clone().reshape([batch, 1, heads * entries]).max_dim(2) + 1.0,
    };
    // A token sees itself: the last was seen once.
    let queries: Tensor<4> = (seen - positions).clamp_min(1.0).reshape([batch, heads, 1, entries]);
    let queries = queries.expand([batch, heads, of_queries[1] / heads, entries]);
    let queries = queries.reshape(of_queries);
    let mean = sums / queries.clone();
    let variance = squares / queries - mean.clone().square();
    let deviation = group_mean(variance.clamp_min(0.0).sqrt(), heads);
    let mean = group_mean(mean, heads);
    if keep.iter().all(|&keep| keep == 0) {
        return Ok(mean);
    }
    let deviation = deviation.mask_fill(padding, -1.0);
    let lists = batch * heads;
    let chosen = best::select(SelectInput {
        scores: &deviation,
        lengths: &vec![entries; lists],
        keep,
        sinks: 0,
        recent: &vec![0; lists],
        check: false,
    })?;
    let fillers = chosen.padding_mask();
    let mut last = deviation.clone().gather(2, chosen.indices);
    if let Some(fillers) = fillers {
        last = last.mask_fill(fillers, f32::INFINITY);
    }
    let first = deviation.greater_equal(last.min_dim(2).expand(dims));
    Ok(mean.clone().mask_where(first, mean + RobustInput::ABOVE))
}
