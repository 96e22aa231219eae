use cubecl::prelude::*;

use crate::common::line::{at, write};

/// Units of a cube.
pub(super) const UNITS: usize = 256;

/// Tokens and clusters of a head that are described, and tokens behind them.
#[derive(CubeType, Clone, Copy)]
struct Head {
    tokens: usize,
    clusters: usize,
    unclustered: usize,
}

/// See [`super::extend`]. A unit a column and a row; cubes along y are heads.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn extend<I: Int>(
    cluster_of_token: &Tensor<I>,
    norms: &Tensor<f32>,
    representatives: &Tensor<I>,
    counts: &Tensor<I>,
    rows: &mut Tensor<I>,
    all_norms: &mut Tensor<f32>,
    all_representatives: &mut Tensor<I>,
    tokens: usize,
    clusters: usize,
    unclustered: usize,
    #[comptime] differ: bool,
    #[define(I)] _type: ElemType,
) {
    let place = CUBE_POS_X as usize * UNITS + UNIT_POS as usize;
    let list = CUBE_POS_Y as usize;
    let heads = cluster_of_token.shape(1);
    let (batch, head) = (list / heads, list % heads);
    let (columns, height) = (rows.shape(2), all_representatives.shape(2));
    let mut held = Head { tokens, clusters, unclustered };
    if comptime!(differ) {
        let (at, step) = (list * counts.stride(0), counts.stride(1));
        held.tokens = usize::cast_from(counts[at]);
        held.clusters = usize::cast_from(counts[at + step]);
        held.unclustered = usize::cast_from(counts[at + 2 * step]);
    }
    // Lists end with their heads.
    let first_column = columns - held.tokens - held.unclustered;
    let first_row = height - held.clusters - held.unclustered;
    if place < columns {
        let mut row = 0usize.runtime();
        let mut norm = f32::new(1.0);
        if place >= first_column {
            let token = place - first_column;
            if token < held.tokens {
                let from = cluster_of_token.shape(2) - held.tokens + token;
                let of_token = at::<I>(cluster_of_token, batch, head, from);
                row = first_row + usize::cast_from(cluster_of_token[of_token]);
                norm = norms[at::<f32>(norms, batch, head, from)];
            } else {
                row = height - held.unclustered + token - held.tokens;
            }
        }
        write::<I>(rows, batch, head, place, I::cast_from(row));
        write::<f32>(all_norms, batch, head, place, norm);
    }
    if place < height {
        let mut representative = 0usize.runtime();
        if place >= first_row {
            let number = place - first_row;
            if number < held.clusters {
                let from = representatives.shape(2) - held.clusters + number;
                let of_representative = at::<I>(representatives, batch, head, from);
                representative =
                    first_column + usize::cast_from(representatives[of_representative]);
            } else {
                representative = columns - held.unclustered + number - held.clusters;
            }
        }
        write::<I>(all_representatives, batch, head, place, I::cast_from(representative));
    }
}
