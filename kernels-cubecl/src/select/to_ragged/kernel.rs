use cubecl::prelude::*;

use crate::common::copy_rows::{lanes, rows_of_cube};

/// See [`super::pack`]. Cubes along x are batch rows and heads; those along y have so many columns each.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn pack<E: Float, I: Int, N: Size>(
    keys: &Tensor<Vector<E, N>>,
    values: &Tensor<Vector<E, N>>,
    offsets: &Tensor<I>,
    list_keys: &mut Tensor<Vector<E, N>>,
    list_values: &mut Tensor<Vector<E, N>>,
    #[comptime] vectors: usize,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let unit = UNIT_POS as usize;
    let list = CUBE_POS_X as usize;
    let heads = keys.shape(1);
    let columns = keys.shape(2);
    let (batch, head) = (list / heads, list % heads);
    let rows = comptime!(rows_of_cube(vectors));
    let side_by_side = comptime!(lanes(vectors));
    let column = CUBE_POS_Y as usize * rows + unit / side_by_side;
    let start = usize::cast_from(offsets[list * offsets.stride(0)]);
    let end = usize::cast_from(offsets[(list + 1) * offsets.stride(0)]);
    let place = end + column;
    let holds = column < columns && place >= start + columns;
    if unit < comptime!(rows * side_by_side) && holds {
        let step = keys.vector_size();
        let row = place - columns;
        let key = batch * keys.stride(0) + head * keys.stride(1) + column * keys.stride(2);
        let value = batch * values.stride(0) + head * values.stride(1) + column * values.stride(2);
        let (to_key, to_value) = (row * list_keys.stride(0), row * list_values.stride(0));
        let (to_key_step, to_value_step) = (list_keys.stride(1), list_values.stride(1));
        let mut vector = unit % side_by_side;
        while vector < vectors {
            let channel = vector * step;
            let of_key = keys[(key + channel * keys.stride(3)) / step];
            let of_value = values[(value + channel * values.stride(3)) / step];
            list_keys[(to_key + channel * to_key_step) / step] = of_key;
            list_values[(to_value + channel * to_value_step) / step] = of_value;
            vector += side_by_side;
        }
    }
}
