use cubecl::prelude::*;

use crate::common::line::{at, write};

/// Units of a cube.
pub(super) const UNITS: usize = 256;

/// Tokens and entries of a head that are described, and tokens behind them.
#[derive(CubeType, Clone, Copy)]
struct Head {
    tokens: usize,
    entries: usize,
    own: usize,
}

/// See [`super::extend`]. A unit a column and a row; cubes along y are heads.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn extend<I: Int>(
    cluster_of_token: &Tensor<I>,
    norms: &Tensor<f32>,
    centers: &Tensor<I>,
    counts: &Tensor<I>,
    rows: &mut Tensor<I>,
    all_norms: &mut Tensor<f32>,
    all_centers: &mut Tensor<I>,
    tokens: usize,
    entries: usize,
    own: usize,
    #[comptime] differ: bool,
    #[define(I)] _type: ElemType,
) {
    let place = CUBE_POS_X as usize * UNITS + UNIT_POS as usize;
    let list = CUBE_POS_Y as usize;
    let heads = cluster_of_token.shape(1);
    let (batch, head) = (list / heads, list % heads);
    let (columns, height) = (rows.shape(2), all_centers.shape(2));
    let mut held = Head { tokens, entries, own };
    if comptime!(differ) {
        let (at, step) = (list * counts.stride(0), counts.stride(1));
        held.tokens = usize::cast_from(counts[at]);
        held.entries = usize::cast_from(counts[at + step]);
        held.own = usize::cast_from(counts[at + 2 * step]);
    }
    // Lists end with their heads.
    let first_column = columns - held.tokens - held.own;
    let first_row = height - held.entries - held.own;
    if place < columns {
        let mut row = 0usize.runtime();
        let mut norm = f32::new(1.0);
        if place >= first_column {
            let token = place - first_column;
            if token < held.tokens {
                let from = cluster_of_token.shape(2) - held.tokens + token;
                let of_entry = at::<I>(cluster_of_token, batch, head, from);
                row = first_row + usize::cast_from(cluster_of_token[of_entry]);
                norm = norms[at::<f32>(norms, batch, head, from)];
            } else {
                row = height - held.own + token - held.tokens;
            }
        }
        write::<I>(rows, batch, head, place, I::cast_from(row));
        write::<f32>(all_norms, batch, head, place, norm);
    }
    if place < height {
        let mut center = 0usize.runtime();
        if place >= first_row {
            let number = place - first_row;
            if number < held.entries {
                let from = centers.shape(2) - held.entries + number;
                let of_center = at::<I>(centers, batch, head, from);
                center = first_column + usize::cast_from(centers[of_center]);
            } else {
                center = columns - held.own + number - held.entries;
            }
        }
        write::<I>(all_centers, batch, head, place, I::cast_from(center));
    }
}
