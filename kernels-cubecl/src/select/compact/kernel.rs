use cubecl::prelude::*;

use crate::common::{
    copy_rows::{UNITS, copy_rows, lanes, rows_of_cube},
    line::{at, row_of, write},
};

/// See [`super::compact`]. Cubes along x are batch rows and heads. Of those along y, the first
/// `row_cubes` copy keys and values, so many rows each; behind them `column_cubes` copy positions,
/// `UNITS` each, and as many each number of the statistics that belongs to the kv head.
#[cube(launch)]
// The outer condition is decided when the kernel is expanded.
#[allow(clippy::collapsible_if)]
pub(super) fn compact<K: Float, V: Float, I: Int, N: Size>(
    keys: &Tensor<Vector<K, N>>,
    values: &Tensor<Vector<V, N>>,
    positions: &Tensor<I>,
    statistics: &Tensor<f32>,
    indices: &Tensor<I>,
    padding: &Tensor<I>,
    kept_keys: &mut Tensor<Vector<K, N>>,
    kept_values: &mut Tensor<Vector<V, N>>,
    kept_positions: &mut Tensor<I>,
    kept_statistics: &mut Tensor<f32>,
    row_cubes: usize,
    column_cubes: usize,
    #[comptime] vectors: usize,
    #[comptime] counted: bool,
    #[comptime] filled: bool,
    #[define(K, V, I)] _types: [ElemType; 3],
) {
    let unit = UNIT_POS as usize;
    let kv_heads = indices.shape(1);
    let columns = indices.shape(2);
    let batch = CUBE_POS_X as usize / kv_heads;
    let head = CUBE_POS_X as usize % kv_heads;
    let cube = CUBE_POS_Y as usize;
    let of_indices = batch * indices.stride(0) + head * indices.stride(1);

    if cube < row_cubes {
        let rows = comptime!(rows_of_cube(vectors));
        let side_by_side = comptime!(lanes(vectors));
        let column = cube * rows + unit / side_by_side;
        if unit < comptime!(rows * side_by_side) && column < columns {
            let entry = usize::cast_from(indices[of_indices + column * indices.stride(2)]);
            let key = row_of::<Vector<K, N>>(keys, batch, head, entry);
            let value = row_of::<Vector<V, N>>(values, batch, head, entry);
            let kept_key = row_of::<Vector<K, N>>(&*kept_keys, batch, head, column);
            let kept_value = row_of::<Vector<V, N>>(&*kept_values, batch, head, column);
            copy_rows::<K, V, N>(
                keys,
                values,
                kept_keys,
                kept_values,
                &key,
                &value,
                &kept_key,
                &kept_value,
                vectors,
            );
        }
    } else {
        let plane = (cube - row_cubes) / column_cubes;
        let column = (cube - row_cubes) % column_cubes * UNITS + unit;
        if column < columns {
            let entry = usize::cast_from(indices[of_indices + column * indices.stride(2)]);
            let mut is_padding = false;
            if comptime!(filled) {
                let missing = usize::cast_from(padding[CUBE_POS_X as usize * padding.stride(0)]);
                is_padding = column < missing;
            }
            if plane == 0 {
                let mut position = positions[at::<I>(positions, batch, head, entry)];
                if is_padding {
                    position = I::cast_from(-1i32);
                }
                write::<I>(kept_positions, batch, head, column, position);
            }
            if comptime!(counted) {
                if plane > 0 {
                    let group = statistics.shape(1) / kv_heads;
                    let kind = (plane - 1) / group;
                    let row = kind * indices.shape(0) + batch;
                    let of_group = head * group + (plane - 1) % group;
                    let mut number = statistics[at::<f32>(statistics, row, of_group, entry)];
                    if is_padding {
                        number = 0.0;
                    }
                    write::<f32>(kept_statistics, row, of_group, column, number);
                }
            }
        }
    }
}
