use cubecl::prelude::*;

use crate::common::line::{at, write};

/// Units of a cube.
pub(super) const UNITS: usize = 256;

/// See [`super::row_weights`]. A unit a row; cubes along y are heads. Columns are looked at by all
/// rows of a cube together, so many at a time.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn row_weights<I: Int>(
    rows: &Tensor<I>,
    positions: &Tensor<I>,
    scores: &Tensor<f32>,
    weights: &mut Tensor<f32>,
    least: f32,
    most: f32,
    #[define(I)] _type: ElemType,
) {
    let unit = UNIT_POS as usize;
    let row = CUBE_POS_X as usize * UNITS + unit;
    let list = CUBE_POS_Y as usize;
    let heads = rows.shape(1);
    let (batch, head) = (list / heads, list % heads);
    let columns = rows.shape(2);
    let mut row_of = Shared::<[u32]>::new_slice(UNITS);
    let mut weight_of = Shared::<[f32]>::new_slice(UNITS);
    let mut sum = f32::new(0.0);
    let mut first = 0usize.runtime();
    while first < columns {
        let column = first + unit;
        let mut own = 0u32;
        let mut weight = f32::new(0.0);
        if column < columns && positions[at::<I>(positions, batch, head, column)] >= I::new(0) {
            own = u32::cast_from(rows[at::<I>(rows, batch, head, column)]);
            weight = scores[at::<f32>(scores, batch, head, column)].clamp(least, most);
        }
        row_of[unit] = own;
        weight_of[unit] = weight;
        sync_cube();
        // Padding weighs nothing, whatever its row.
        for place in 0..UNITS {
            sum += select(row_of[place] as usize == row, weight_of[place], 0.0);
        }
        sync_cube();
        first += UNITS;
    }
    if row < weights.shape(2) {
        write::<f32>(weights, batch, head, row, sum);
    }
}
