use cubecl::prelude::*;

use crate::common::line::StridedSlice;

/// Units of a cube.
pub(super) const UNITS: usize = 256;

/// See [`super::count`]. Units are numbered through the entries of all heads.
#[cube(launch)]
pub(super) fn count(
    statistics: &Tensor<f32>,
    weights: &Tensor<f32>,
    output: &mut Tensor<f32>,
    #[comptime] kinds: usize,
    #[comptime] added: u32,
    #[comptime] squared: u32,
) {
    let place = CUBE_POS * UNITS + UNIT_POS as usize;
    let (batches, columns) = (weights.shape(0), weights.shape(2));
    let heads = output.shape(1);
    if place < batches * heads * columns {
        let column = place % columns;
        let head = place / columns % heads;
        let batch = place / columns / heads;
        let group = weights.shape(1) / heads;
        let of_heads = StridedSlice {
            start: batch * weights.stride(0)
                + head * group * weights.stride(1)
                + column * weights.stride(2),
            stride: weights.stride(1),
        };
        let mut sum = f32::new(0.0);
        let mut squares = f32::new(0.0);
        for query_head in 0..group {
            let weight = weights[of_heads.at(query_head)];
            sum += weight;
            squares += weight * weight;
        }
        let mean = sum / f32::cast_from(group);
        let mean_square = squares / f32::cast_from(group);
        #[unroll]
        for kind in 0..kinds {
            let row = kind * batches + batch;
            let from = row * statistics.stride(0)
                + head * statistics.stride(1)
                + column * statistics.stride(2);
            let to = row * output.stride(0) + head * output.stride(1) + column * output.stride(2);
            let mut number = statistics[from];
            if comptime!((added >> kind) & 1 == 1) {
                number += mean;
            }
            if comptime!((squared >> kind) & 1 == 1) {
                number += mean_square;
            }
            output[to] = number;
        }
    }
}
