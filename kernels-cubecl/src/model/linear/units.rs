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
/// Rows of weights that a unit loads at once, where they divide the contraction.
const AHEAD: usize = 8;

/// Compile-time parameters of [`linear_units`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LinearUnitsBlueprint {
    /// Rows of `x` of a unit.
    pub(super) rows: usize,
    /// Rows of weights at once: a number of whole vectors of `x`.
    pub(super) ahead: usize,
}

impl LinearUnitsBlueprint {
    /// Blueprint for so many rows of `x`, of so many inputs, which is read in vectors.
    pub(super) fn new(rows: usize, inputs: usize, vector: usize) -> Self {
        let ahead = if inputs.is_multiple_of(AHEAD) { AHEAD } else { vector };
        Self { rows: rows.min(ROWS), ahead }
    }
}

/// See [`super::linear`]: a cube's share of the sums, multiplied in f32 on any device, weights
/// lying as they may. A unit has `N` outputs of a few rows; cubes along y have further rows.
#[cube(launch)]
pub(super) fn linear_units<E: Float, M: Size, N: Size>(
    x: &Tensor<Vector<E, M>>,
    weight: &Tensor<Vector<E, N>>,
    parts: &mut Tensor<Vector<f32, N>>,
    share: usize,
    #[comptime] blueprint: LinearUnitsBlueprint,
    #[define(E)] _type: ElemType,
) {
    let LinearUnitsBlueprint { rows: of_unit, ahead } = blueprint;
    let (width, vector) = (weight.vector_size(), x.vector_size());
    let tile = comptime!(UNITS * width);
    let (rows, inputs, outputs) = (x.shape(0), x.shape(1), weight.shape(1));
    let tiles = outputs.div_ceil(tile);
    // Cubes beside each other read beside each other: a tile's piece of a row is short for memory.
    let number = CUBE_POS_X as usize % tiles;
    let split = CUBE_POS_X as usize / tiles;
    let splits = CUBE_COUNT_X as usize / tiles;
    // As `LinearPlan::parts` numbers them: the cube, in the order of tiles, and the tile.
    let part = number * splits + split + number;
    let first_row = CUBE_POS_Y as usize * of_unit;
    let pitch = weight.stride(0) / width;
    let along = x.stride(1);
    let mut x_rows = Array::<usize>::new(of_unit);
    #[unroll]
    for row in 0..of_unit {
        x_rows[row] = (first_row + row).min(rows - 1) * x.stride(0) / vector;
    }

    let own = UNIT_POS as usize * width;
    let column = (number * tile + own).min(outputs - width) * weight.stride(1);
    let stop = ((split + 1) * share * STEP).min(inputs);
    let mut sums = Array::<Vector<f32, N>>::new(of_unit);
    #[unroll]
    for row in 0..of_unit {
        sums[row] = Vector::new(0.0);
    }
    let mut at = split * share * STEP;
    let mut from = column / width + at * pitch;
    while at < stop {
        let mut loaded = Array::<Vector<E, N>>::new(ahead);
        #[unroll]
        for index in 0..ahead {
            loaded[index] = weight[from + index * pitch];
        }
        #[unroll]
        for row in 0..of_unit {
            #[unroll]
            for group in 0..comptime!(ahead / vector) {
                let numbers = x[x_rows[row] + (at / vector + group) * along];
                #[unroll]
                for index in 0..vector {
                    let number = f32::cast_from(numbers.extract(index));
                    let weights =
                        Vector::<f32, N>::cast_from(loaded[comptime!(group * vector + index)]);
                    sums[row] += weights * Vector::new(number);
                }
            }
        }
        at += ahead;
        from += ahead * pitch;
    }
    #[unroll]
    for row in 0..of_unit {
        if first_row + row < rows {
            parts[((part * rows + first_row + row) * tile + own) / width] = sums[row];
        }
    }
}
