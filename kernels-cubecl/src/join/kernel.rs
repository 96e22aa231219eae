use cubecl::prelude::*;

use crate::line::{at, write};

/// Units of a cube.
pub(super) const UNITS: usize = 256;

/// See [`super::join`]. A unit a column; cubes along y are batch rows and kv heads.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn join<I: Int>(
    positions: &Tensor<I>,
    more_positions: &Tensor<I>,
    tracks: &Sequence<OwnedTensor<f32>>,
    more_tracks: &Sequence<OwnedTensor<f32>>,
    all_positions: &mut Tensor<I>,
    all_tracks: &mut Sequence<OwnedTensor<f32>>,
    #[define(I)] _type: ElemType,
) {
    let column = CUBE_POS_X as usize * UNITS + UNIT_POS as usize;
    let list = CUBE_POS_Y as usize;
    let heads = all_positions.shape(1);
    let (batch, head) = (list / heads, list % heads);
    let width = positions.shape(2);
    if column < all_positions.shape(2) {
        let behind = column >= width;
        let position = if behind {
            more_positions[at::<I>(more_positions, batch, head, column - width)]
        } else {
            positions[at::<I>(positions, batch, head, column)]
        };
        write::<I>(all_positions, batch, head, column, position);
        #[unroll]
        for track in 0..tracks.len() {
            let before = &tracks[track];
            let more = &more_tracks[track];
            let group = before.shape(1) / heads;
            for one in 0..group {
                let of_group = head * group + one;
                let number = if behind {
                    more[batch * more.stride(0)
                        + of_group * more.stride(1)
                        + (column - width) * more.stride(2)]
                } else {
                    before[batch * before.stride(0)
                        + of_group * before.stride(1)
                        + column * before.stride(2)]
                };
                let all = &mut all_tracks[track];
                let to = batch * all.stride(0) + of_group * all.stride(1) + column * all.stride(2);
                all[to] = number;
            }
        }
    }
}
