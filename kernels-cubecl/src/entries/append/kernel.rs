use cubecl::prelude::*;

use crate::common::line::{at, write};

/// Units of a cube.
pub(super) const UNITS: usize = 64;

/// See [`super::append`]. Cubes are numbered through the heads of all batch rows.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn append<E: Float, I: Int, N: Size>(
    keys: &mut Tensor<Vector<E, N>>,
    values: &mut Tensor<Vector<E, N>>,
    positions: &mut Tensor<I>,
    statistics: &mut Tensor<f32>,
    counted: &mut Tensor<I>,
    new_keys: &Tensor<Vector<E, N>>,
    new_values: &Tensor<Vector<E, N>>,
    new_positions: &Tensor<I>,
    column: usize,
    vectors: usize,
    #[comptime] is_counted: bool,
    #[comptime] counts_down: bool,
    #[comptime] is_tracked: bool,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let unit = UNIT_POS as usize;
    let (batches, heads) = (keys.shape(0), keys.shape(1));
    let list = CUBE_POS;
    if list < batches * heads {
        let (batch, head) = (list / heads, list % heads);
        let width = new_keys.vector_size();
        let mut column = column;
        if comptime!(is_counted) {
            column = usize::cast_from(counted[list * counted.stride(0)]);
            if comptime!(counts_down) {
                column -= 1;
            }
            // All have read before one counts on.
            sync_cube();
        }
        let (key, value) = (at(new_keys, batch, head, 0), at(new_values, batch, head, 0));
        let (to_key, to_value) =
            (at(&*keys, batch, head, column), at(&*values, batch, head, column));
        let mut vector = unit;
        while vector < vectors {
            let channel = vector * width;
            let of_key = new_keys[(key + channel * new_keys.stride(3)) / width];
            let of_value = new_values[(value + channel * new_values.stride(3)) / width];
            let to_key = to_key + channel * keys.stride(3);
            let to_value = to_value + channel * values.stride(3);
            keys[to_key / width] = of_key;
            values[to_value / width] = of_value;
            vector += UNITS;
        }
        if unit == 0 {
            let position = new_positions[at::<I>(new_positions, batch, head, 0)];
            write::<I>(positions, batch, head, column, position);
            if comptime!(is_counted) {
                let to = list * counted.stride(0);
                let mut next = column;
                if comptime!(!counts_down) {
                    next += 1;
                }
                counted[to] = I::cast_from(next);
            }
        }
        if comptime!(is_tracked) {
            let group = statistics.shape(1) / heads;
            let numbers = statistics.shape(0) / batches * group;
            let mut number = unit;
            while number < numbers {
                let row = number / group * batches + batch;
                write::<f32>(statistics, row, head * group + number % group, column, 0.0);
                number += UNITS;
            }
        }
    }
}
