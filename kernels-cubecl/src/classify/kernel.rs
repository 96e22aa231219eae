use cubecl::prelude::*;

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
        let of_position =
            batch * positions.stride(0) + head * positions.stride(1) + column * positions.stride(2);
        let mut class = I::new(-1);
        let mut rank = f32::new(f32::MIN);
        if positions[of_position] >= I::new(0) {
            let of_row = batch * rows.stride(0) + head * rows.stride(1) + column * rows.stride(2);
            let row = usize::cast_from(rows[of_row]);
            class = entry[batch * entry.stride(0) + head * entry.stride(1) + row * entry.stride(2)]
                - I::new(1);
        }
        if class >= I::new(0) {
            let mut first = fillers;
            if comptime!(differ) {
                first = usize::cast_from(missing[list * missing.stride(0)]);
            }
            let place = first + usize::cast_from(class);
            let of_center =
                batch * centers.stride(0) + head * centers.stride(1) + place * centers.stride(2);
            if usize::cast_from(centers[of_center]) == column {
                rank = f32::new(f32::MAX);
            } else {
                rank = scores[batch * scores.stride(0)
                    + head * scores.stride(1)
                    + column * scores.stride(2)];
            }
        }
        let to = batch * classes.stride(0) + head * classes.stride(1) + column * classes.stride(2);
        classes[to] = class;
        let to = batch * ranks.stride(0) + head * ranks.stride(1) + column * ranks.stride(2);
        ranks[to] = rank;
    }
}
