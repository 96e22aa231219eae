use cubecl::prelude::*;

use crate::common::{
    copy_rows::{copy_rows, lanes, rows_of_cube},
    line::{StridedSlice, row_of},
};

/// See [`super::pad`]. Cubes along x are batch rows and heads; those along y have so many columns
/// each.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn pad<E: Float, I: Int, N: Size>(
    keys: &Tensor<Vector<E, N>>,
    values: &Tensor<Vector<E, N>>,
    offsets: &Tensor<I>,
    tail_keys: &Tensor<Vector<E, N>>,
    tail_values: &Tensor<Vector<E, N>>,
    all_keys: &mut Tensor<Vector<E, N>>,
    all_values: &mut Tensor<Vector<E, N>>,
    width: usize,
    #[comptime] vectors: usize,
    #[comptime] differ: bool,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let unit = UNIT_POS as usize;
    let list = CUBE_POS_X as usize;
    let heads = all_keys.shape(1);
    let (batch, head) = (list / heads, list % heads);
    let rows = comptime!(rows_of_cube(vectors));
    let side_by_side = comptime!(lanes(vectors));
    let column = CUBE_POS_Y as usize * rows + unit / side_by_side;
    if unit < comptime!(rows * side_by_side) && column < all_keys.shape(2) {
        let to_key = row_of::<Vector<E, N>>(&*all_keys, batch, head, column);
        let to_value = row_of::<Vector<E, N>>(&*all_values, batch, head, column);
        if column < width {
            // The list of a head ends where the next begins; a column before its own has any row
            // there is.
            let mut end = (list + 1) * width;
            if comptime!(differ) {
                end = usize::cast_from(offsets[(list + 1) * offsets.stride(0)]);
            }
            let row = ((end + column).max(width) - width).min(keys.shape(0) - 1);
            let key = StridedSlice { start: row * keys.stride(0), stride: keys.stride(1) };
            let value = StridedSlice { start: row * values.stride(0), stride: values.stride(1) };
            copy_rows::<E, E, N>(
                keys, values, all_keys, all_values, &key, &value, &to_key, &to_value, vectors,
            );
        } else {
            let row = column - width;
            let key = row_of::<Vector<E, N>>(tail_keys, batch, head, row);
            let value = row_of::<Vector<E, N>>(tail_values, batch, head, row);
            copy_rows::<E, E, N>(
                tail_keys,
                tail_values,
                all_keys,
                all_values,
                &key,
                &value,
                &to_key,
                &to_value,
                vectors,
            );
        }
    }
}
