use cubecl::prelude::*;

use crate::common::line::{at, write};

/// The threshold of a row that has evicted nothing so far: no cosine is as low.
const NONE_YET: f32 = -4.0;

/// Units of a cube.
pub(super) const UNITS: usize = 256;

/// See [`super::ema_weights`]. A cube a batch row. Of each head the last `count` columns are there,
/// or as many as `counts` says where heads `differ`.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn ema_weights<I: Int>(
    similarity: &Tensor<f32>,
    before: &Tensor<f32>,
    counts: &Tensor<I>,
    weights: &mut Tensor<f32>,
    threshold: &mut Tensor<f32>,
    count: usize,
    beta: f32,
    #[comptime] follows: bool,
    #[comptime] differ: bool,
    #[define(I)] _type: ElemType,
) {
    let unit = UNIT_POS as usize;
    let batch = CUBE_POS_X as usize;
    let heads = similarity.shape(1);
    let columns = similarity.shape(2);
    let mut sums = Shared::<[f32]>::new_slice(UNITS);
    let mut sum = f32::new(0.0);
    let mut number = 0usize.runtime();
    for head in 0..heads {
        let mut own = count;
        if comptime!(differ) {
            own = usize::cast_from(counts[(batch * heads + head) * counts.stride(0)]);
        }
        number += own;
        let mut column = columns - own + unit;
        while column < columns {
            sum += similarity[at::<f32>(similarity, batch, head, column)];
            column += UNITS;
        }
    }
    sums[unit] = sum;
    sync_cube();
    let mut half = comptime!(UNITS / 2).runtime();
    while half > 0 {
        if unit < half {
            let other = sums[unit + half];
            sums[unit] += other;
        }
        sync_cube();
        half /= 2;
    }
    // The mean of what goes now, and the newest has the weight of beta. What has seen nothing go
    // has no threshold.
    let mean = sums[0] / f32::cast_from(number.max(1));
    let mut limit = mean;
    if comptime!(follows) {
        let held = before[batch * before.stride(0)];
        limit = select(held < comptime!(NONE_YET / 2.0), mean, mean * beta + held * (1.0 - beta));
        limit = select(number == 0, held, limit);
    } else {
        limit = select(number == 0, f32::new(NONE_YET), limit);
    }
    if unit == 0 {
        let place = batch * threshold.stride(0);
        threshold[place] = limit;
    }
    for head in 0..heads {
        let mut own = count;
        if comptime!(differ) {
            own = usize::cast_from(counts[(batch * heads + head) * counts.stride(0)]);
        }
        let mut column = unit;
        while column < columns {
            let like = similarity[at::<f32>(similarity, batch, head, column)];
            let merges = column >= columns - own && like >= limit;
            write::<f32>(weights, batch, head, column, select(merges, like.exp(), 0.0));
            column += UNITS;
        }
    }
}
