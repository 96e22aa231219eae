use cubecl::prelude::*;

use super::step::STEP;

/// Units of a cube, side by side along the outputs.
pub(super) const UNITS: usize = 64;
/// Rows of `x` that a unit has at most.
pub(super) const ROWS: usize = 8;
/// Outputs of a unit at most.
pub(super) const MOST_VECTOR: usize = 4;
/// Cubes that hide each other's loads.
pub(super) const CUBES_A_PROCESSOR: usize = 8;
/// Loads on their way.
const IN_FLIGHT: usize = 4;

/// See [`super::linear`]: a cube's share of the sums, multiplied in f32 on any device, weights
/// lying as they may. A unit has `N` outputs of a few rows; cubes along y have further rows.
#[cube(launch)]
pub(super) fn linear_units<E: Float, N: Size>(
    x: &Tensor<E>,
    weight: &Tensor<Vector<E, N>>,
    parts: &mut Tensor<Vector<f32, N>>,
    share: usize,
    #[comptime] of_unit: usize,
    #[define(E)] _type: ElemType,
) {
    let width = weight.vector_size();
    let tile = comptime!(UNITS * width);
    let (rows, inputs, outputs) = (x.shape(0), x.shape(1), weight.shape(1));
    let steps = inputs.div_ceil(STEP);
    let first_row = CUBE_POS_Y as usize * of_unit;
    let mut place = CUBE_POS_X as usize * share;
    let last = (place + share).min(steps * outputs.div_ceil(tile));

    while place < last {
        let number = place / steps;
        let begin = place - number * steps;
        let end = (begin + last - place).min(steps);
        let own = UNIT_POS as usize * width;
        let column = (number * tile + own).min(outputs - width) * weight.stride(1);
        let stop = (end * STEP).min(inputs);
        let mut sums = Array::<Vector<f32, N>>::new(of_unit);
        #[unroll]
        for row in 0..of_unit {
            sums[row] = Vector::new(0.0);
        }
        let mut at = begin * STEP;
        while at < stop {
            let mut loaded = Array::<Vector<f32, N>>::new(IN_FLIGHT);
            #[unroll]
            for ahead in 0..IN_FLIGHT {
                // Behind the last row of weights it is loaded again, and not added.
                let row = (at + ahead).min(stop - 1) * weight.stride(0);
                loaded[ahead] = Vector::cast_from(weight[(row + column) / width]);
            }
            #[unroll]
            for ahead in 0..IN_FLIGHT {
                if at + ahead < stop {
                    #[unroll]
                    for row in 0..of_unit {
                        let row_start = (first_row + row).min(rows - 1) * x.stride(0);
                        let number = f32::cast_from(x[row_start + (at + ahead) * x.stride(1)]);
                        sums[row] += loaded[ahead] * Vector::new(number);
                    }
                }
            }
            at += IN_FLIGHT;
        }
        let part = CUBE_POS_X as usize + number;
        #[unroll]
        for row in 0..of_unit {
            if first_row + row < rows {
                parts[((part * rows + first_row + row) * tile + own) / width] = sums[row];
            }
        }
        place += end - begin;
    }
}
