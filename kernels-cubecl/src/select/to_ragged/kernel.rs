use cubecl::prelude::*;

use crate::common::{
    copy_rows::{copy_rows, lanes, rows_of_cube},
    line::{StridedSlice, row_of},
};

/// See [`super::pack`]. Cubes along x are batch rows and heads; those along y have so many columns
/// each.
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
        let row = place - columns;
        let key = row_of::<Vector<E, N>>(keys, batch, head, column);
        let value = row_of::<Vector<E, N>>(values, batch, head, column);
        let to_key = StridedSlice { start: row * list_keys.stride(0), stride: list_keys.stride(1) };
        let to_value =
            StridedSlice { start: row * list_values.stride(0), stride: list_values.stride(1) };
        copy_rows::<E, E, N>(
            keys,
            values,
            list_keys,
            list_values,
            &key,
            &value,
            &to_key,
            &to_value,
            vectors,
        );
    }
}
