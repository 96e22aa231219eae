use cubecl::prelude::*;

/// Rows of `x` that a unit has at most.
pub(super) const ROWS: usize = 8;
/// Outputs of a cube where those are few: pieces of a row of weights are 64 bytes in 16 bits.
pub(super) const NARROW: usize = 32;
/// Outputs of a cube where there are [`MANY`] such cubes: longer pieces are read faster, if enough
/// multiprocessors have one (H200, `docs/lab/backends.md`).
const WIDE: usize = 2 * NARROW;
const MANY: usize = 256;
/// Units of a cube for one row and for several, which need more registers.
const UNITS: [usize; 2] = [1024, 512];
/// Bytes of a column of weights that a unit loads at once.
const AHEAD: usize = 32;
/// Partial sums of a column that are added up last.
const LAST: usize = 8;

/// Compile-time parameters of [`linear_units`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LinearUnitsBlueprint {
    /// Rows of `x` of a unit.
    pub(super) rows: usize,
    /// Outputs of a cube.
    pub(super) tile: usize,
    /// Rows of weights at once: a number of whole vectors of `x`.
    ahead: usize,
    /// Units side by side along the outputs.
    across: usize,
    /// Units that take turns along the contraction.
    along: usize,
    biased: bool,
}

impl LinearUnitsBlueprint {
    /// Blueprint for so many rows of `x`, inputs and outputs, vectors of `x` and of weights, bytes
    /// of a number, and at most so many units of a cube.
    pub(super) fn new(
        [rows, inputs, outputs]: [usize; 3],
        [of_x, of_weight]: [usize; 2],
        bytes: usize,
        most_units: usize,
        biased: bool,
    ) -> Self {
        let ahead = AHEAD / bytes;
        let ahead = if inputs.is_multiple_of(ahead) { ahead } else { of_x };
        let tile = if outputs >= WIDE * MANY { WIDE } else { NARROW };
        let across = tile / of_weight;
        let units = UNITS[usize::from(rows > 1)].min(most_units);
        // Whole planes of units that have something to do.
        let busy = inputs.div_ceil(ahead).next_multiple_of(4);
        let along = (units / across).clamp(1, busy);
        Self { rows: rows.min(ROWS), tile, ahead, across, along, biased }
    }

    /// Units of a cube.
    pub(super) fn units(&self) -> usize {
        self.across * self.along
    }
}

/// See [`super::linear`]: the sums of a tile, multiplied in f32 on any device, weights lying as
/// they may. A unit has `N` outputs of a few rows; cubes along y have further rows.
#[cube(launch)]
pub(super) fn linear_units<E: Float, M: Size, N: Size>(
    x: &Tensor<Vector<E, M>>,
    weight: &Tensor<Vector<E, N>>,
    bias: &Tensor<E>,
    output: &mut Tensor<Vector<E, N>>,
    #[comptime] blueprint: LinearUnitsBlueprint,
    #[define(E)] _type: ElemType,
) {
    let LinearUnitsBlueprint { rows: of_unit, tile, ahead, across, along, biased } = blueprint;
    let (width, vector) = (weight.vector_size(), x.vector_size());
    let (rows, inputs, outputs) = (x.shape(0), x.shape(1), weight.shape(1));
    let unit = UNIT_POS as usize;
    let (side, turn) = (unit % across, unit / across);
    let first_row = CUBE_POS_Y as usize * of_unit;
    let pitch = weight.stride(0) / width;
    let mut x_rows = Array::<usize>::new(of_unit);
    #[unroll]
    for row in 0..of_unit {
        x_rows[row] = (first_row + row).min(rows - 1) * x.stride(0) / vector;
    }

    let column = CUBE_POS_X as usize * tile + side * width;
    let mut sums = Array::<Vector<f32, N>>::new(of_unit);
    #[unroll]
    for row in 0..of_unit {
        sums[row] = Vector::new(0.0);
    }
    let mut at = turn * ahead;
    let mut from = column.min(outputs - width) * weight.stride(1) / width + at * pitch;
    while at < inputs {
        let mut loaded = Array::<Vector<E, N>>::new(ahead);
        #[unroll]
        for index in 0..ahead {
            loaded[index] = weight[from + index * pitch];
        }
        #[unroll]
        for row in 0..of_unit {
            #[unroll]
            for group in 0..comptime!(ahead / vector) {
                let numbers = x[x_rows[row] + (at / vector + group) * x.stride(1)];
                #[unroll]
                for index in 0..vector {
                    let number = f32::cast_from(numbers.extract(index));
                    let weights =
                        Vector::<f32, N>::cast_from(loaded[comptime!(group * vector + index)]);
                    sums[row] += weights * Vector::new(number);
                }
            }
        }
        at += comptime!(along * ahead);
        from += comptime!(along * ahead) * pitch;
    }

    // What the units have found in turns is put together in their order.
    let last = comptime!(LAST.min(along));
    let mut stage = Shared::<[Vector<f32, N>]>::new_slice(comptime!(across * along));
    #[unroll]
    for row in 0..of_unit {
        if comptime!(row > 0) {
            sync_cube();
        }
        stage[unit] = sums[row];
        sync_cube();
        if turn < last {
            let mut sum = Vector::<f32, N>::new(0.0);
            #[unroll]
            for part in 0..comptime!(along.div_ceil(last)) {
                if turn + part * last < along {
                    sum += stage[unit + comptime!(part * last * across)];
                }
            }
            stage[unit] = sum;
        }
        sync_cube();
        if turn == 0 && column < outputs && first_row + row < rows {
            let mut sum = Vector::<f32, N>::new(0.0);
            #[unroll]
            for part in 0..last {
                sum += stage[side + comptime!(part * across)];
            }
            if comptime!(biased) {
                #[unroll]
                for index in 0..width {
                    let own = sum.extract(index)
                        + f32::cast_from(bias[(column + index) * bias.stride(0)]);
                    sum.insert(index, own);
                }
            }
            let place = ((first_row + row) * output.stride(0) + column) / width;
            output[place] = Vector::cast_from(sum);
        }
    }
}
