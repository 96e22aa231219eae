use cubecl::prelude::*;

use crate::common::{
    copy_rows::{UNITS, copy_rows, lanes, rows_of_cube},
    line::StridedSlice,
};

/// See [`super::compact`]. Cubes along x are batch rows and heads. Of those along y, the first
/// `row_cubes` copy keys and values, so many rows each; behind them `column_cubes` copy positions,
/// `UNITS` each, and as many each number of the tracks that belongs to the kv head.
#[cube(launch)]
// The outer condition is decided when the kernel is expanded.
#[allow(clippy::collapsible_if)]
pub(super) fn compact<K: Float, V: Float, I: Int, N: Size>(
    keys: &Tensor<Vector<K, N>>,
    values: &Tensor<Vector<V, N>>,
    positions: &Tensor<I>,
    tracks: &Tensor<f32>,
    indices: &Tensor<I>,
    padding: &Tensor<I>,
    kept_keys: &mut Tensor<Vector<K, N>>,
    kept_values: &mut Tensor<Vector<V, N>>,
    kept_positions: &mut Tensor<I>,
    kept_tracks: &mut Tensor<f32>,
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
            let key = StridedSlice {
                start: batch * keys.stride(0) + head * keys.stride(1) + entry * keys.stride(2),
                stride: keys.stride(3),
            };
            let value = StridedSlice {
                start: batch * values.stride(0)
                    + head * values.stride(1)
                    + entry * values.stride(2),
                stride: values.stride(3),
            };
            let kept_key = StridedSlice {
                start: batch * kept_keys.stride(0)
                    + head * kept_keys.stride(1)
                    + column * kept_keys.stride(2),
                stride: kept_keys.stride(3),
            };
            let kept_value = StridedSlice {
                start: batch * kept_values.stride(0)
                    + head * kept_values.stride(1)
                    + column * kept_values.stride(2),
                stride: kept_values.stride(3),
            };
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
                let from = batch * positions.stride(0)
                    + head * positions.stride(1)
                    + entry * positions.stride(2);
                let to = batch * kept_positions.stride(0)
                    + head * kept_positions.stride(1)
                    + column * kept_positions.stride(2);
                let mut position = positions[from];
                if is_padding {
                    position = I::cast_from(-1i32);
                }
                kept_positions[to] = position;
            }
            if comptime!(counted) {
                if plane > 0 {
                    let group = tracks.shape(1) / kv_heads;
                    let kind = (plane - 1) / group;
                    let row = kind * indices.shape(0) + batch;
                    let of_group = head * group + (plane - 1) % group;
                    let from = row * tracks.stride(0)
                        + of_group * tracks.stride(1)
                        + entry * tracks.stride(2);
                    let mut number = tracks[from];
                    if is_padding {
                        number = 0.0;
                    }
                    let to = row * kept_tracks.stride(0)
                        + of_group * kept_tracks.stride(1)
                        + column * kept_tracks.stride(2);
                    kept_tracks[to] = number;
                }
            }
        }
    }
}
