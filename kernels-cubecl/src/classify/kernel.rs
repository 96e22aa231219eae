use cubecl::prelude::*;

use crate::line::{at, write};

/// Units of a cube.
pub(super) const UNITS: usize = 256;

/// See [`super::classify`]. A unit a column; cubes along y are heads.
#[cube(launch)]
pub(super) fn classify<I: Int>(
    rows: &Tensor<I>,
    entry: &Tensor<I>,
    centers: &Tensor<I>,
    missing: &Tensor<I>,
    positions: &Tensor<I>,
    scores: &Tensor<f32>,
    classes: &mut Tensor<I>,
    ranks: &mut Tensor<f32>,
    fillers: usize,
    #[comptime] differ: bool,
    #[define(I)] _type: ElemType,
) {
    let column = CUBE_POS_X as usize * UNITS + UNIT_POS as usize;
    let list = CUBE_POS_Y as usize;
    let heads = rows.shape(1);
    let (batch, head) = (list / heads, list % heads);
    if column < rows.shape(2) {
        let of_position = at::<I>(positions, batch, head, column);
        let mut class = I::new(-1);
        let mut rank = f32::new(f32::MIN);
        if positions[of_position] >= I::new(0) {
            let of_row = at::<I>(rows, batch, head, column);
            let row = usize::cast_from(rows[of_row]);
            class = entry[at::<I>(entry, batch, head, row)] - I::new(1);
        }
        if class >= I::new(0) {
            let mut first = fillers;
            if comptime!(differ) {
                first = usize::cast_from(missing[list * missing.stride(0)]);
            }
            let place = first + usize::cast_from(class);
            let of_center = at::<I>(centers, batch, head, place);
            if usize::cast_from(centers[of_center]) == column {
                rank = f32::new(f32::MAX);
            } else {
                rank = scores[at::<f32>(scores, batch, head, column)];
            }
        }
        write::<I>(classes, batch, head, column, class);
        write::<f32>(ranks, batch, head, column, rank);
    }
}
