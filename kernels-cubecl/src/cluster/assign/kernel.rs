use cubecl::prelude::*;

use crate::common::line::{at, write};

/// Units of a cube.
pub(super) const UNITS: usize = 256;

/// Lengths of a head.
#[derive(CubeType, Clone, Copy)]
struct Head {
    /// Clusters it lacks: so many columns of padding come first.
    padding: usize,
    /// Rows that may be merged: the last.
    merging: usize,
    /// The number of its first cluster among those that are merged into.
    first: usize,
}

/// See [`super::assign_clusters`]. A unit a column; cubes along y are heads. What a head holds is
/// said by the numbers, or by `held` where heads differ.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn assign_clusters<I: Int>(
    rows: &Tensor<I>,
    kept_rows: &Tensor<I>,
    merged: &Tensor<I>,
    nearest: &Tensor<I>,
    representatives: &Tensor<I>,
    held: &Tensor<I>,
    positions: &Tensor<I>,
    similarity: &Tensor<f32>,
    scores: &Tensor<f32>,
    clusters: &mut Tensor<I>,
    ranks: &mut Tensor<f32>,
    padding: usize,
    merging: usize,
    first: usize,
    threshold: f32,
    #[comptime] merges: bool,
    #[comptime] differ: bool,
    #[define(I)] _type: ElemType,
) {
    let column = CUBE_POS_X as usize * UNITS + UNIT_POS as usize;
    let list = CUBE_POS_Y as usize;
    let heads = rows.shape(1);
    let (batch, head) = (list / heads, list % heads);
    let mut counts = Head { padding, merging, first };
    if comptime!(differ) {
        let (at, step) = (list * held.stride(0), held.stride(1));
        counts.padding = usize::cast_from(held[at]);
        counts.merging = usize::cast_from(held[at + step]);
        counts.first = usize::cast_from(held[at + 2 * step]);
    }
    if column < rows.shape(2) {
        let of_position = at::<I>(positions, batch, head, column);
        let mut cluster = I::new(-1);
        let mut rank = f32::new(f32::MIN);
        if positions[of_position] >= I::new(0) {
            let row = rows[at::<I>(rows, batch, head, column)];
            let kept = kept_rows.shape(2);
            let place = search::<I>(kept_rows, batch, head, counts.padding, kept, row);
            if place < kept && kept_rows[at::<I>(kept_rows, batch, head, place)] == row {
                cluster = I::cast_from(place - counts.padding);
            } else if comptime!(merges) {
                let end = merged.shape(2);
                let place = search::<I>(merged, batch, head, end - counts.merging, end, row);
                if place < end && merged[at::<I>(merged, batch, head, place)] == row {
                    let like = similarity[at::<f32>(similarity, batch, head, place)];
                    if like > threshold {
                        let number =
                            usize::cast_from(nearest[at::<I>(nearest, batch, head, place)]);
                        cluster = I::cast_from(number - counts.first);
                    }
                }
            }
        }
        if cluster >= I::new(0) {
            let of_representative =
                at::<I>(representatives, batch, head, counts.padding + usize::cast_from(cluster));
            if usize::cast_from(representatives[of_representative]) == column {
                rank = f32::new(f32::MAX);
            } else {
                rank = scores[at::<f32>(scores, batch, head, column)];
            }
        }
        write::<I>(clusters, batch, head, column, cluster);
        write::<f32>(ranks, batch, head, column, rank);
    }
}

/// The first place from `from` to `end` of which the number of a head is not less, where they
/// ascend; `end` if all are.
#[cube]
fn search<I: Int>(
    x: &Tensor<I>,
    batch: usize,
    head: usize,
    from: usize,
    end: usize,
    number: I,
) -> usize {
    let mut low = from;
    let mut high = end;
    while low < high {
        let middle = (low + high) / 2;
        if x[at::<I>(x, batch, head, middle)] < number {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}
