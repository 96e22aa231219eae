use cubecl::prelude::*;

use crate::common::line::{at, write};

/// Units of a cube.
pub(super) const UNITS: usize = 256;

/// See [`super::reorder_tokens`]. A unit a new column; cubes along y are heads. Of each head
/// `padding` clusters and `before` columns are missing, or as many as `missing` says, clusters
/// first.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn reorder_tokens<I: Int>(
    columns: &Tensor<I>,
    clusters: &Tensor<I>,
    order: &Tensor<I>,
    rows: &Tensor<I>,
    representatives: &Tensor<I>,
    missing: &Tensor<I>,
    positions: &Tensor<I>,
    norms: &Tensor<f32>,
    lengths: &Tensor<f32>,
    statistics: &Tensor<f32>,
    new_positions: &mut Tensor<I>,
    new_clusters: &mut Tensor<I>,
    new_representatives: &mut Tensor<I>,
    new_norms: &mut Tensor<f32>,
    new_statistics: &mut Tensor<f32>,
    padding: usize,
    before: usize,
    #[comptime] counted: bool,
    #[comptime] differ: bool,
    #[define(I)] _type: ElemType,
) {
    let place = CUBE_POS_X as usize * UNITS + UNIT_POS as usize;
    let list = CUBE_POS_Y as usize;
    let heads = columns.shape(1);
    let (batch, head) = (list / heads, list % heads);
    let mut first_cluster = padding;
    let mut first = before;
    if comptime!(differ) {
        first_cluster = usize::cast_from(missing[list * missing.stride(0)]);
        first = usize::cast_from(missing[list * missing.stride(0) + missing.stride(1)]);
    }
    // Clusters a head lacks have no representative.
    if place < first_cluster {
        write::<I>(new_representatives, batch, head, place, I::new(0));
    }
    if place < columns.shape(2) {
        let from = usize::cast_from(order[at::<I>(order, batch, head, place)]);
        let cluster = clusters[at::<I>(clusters, batch, head, from)];
        let column = usize::cast_from(columns[at::<I>(columns, batch, head, from)]);
        let holds = cluster >= I::new(0);
        let mut position = I::new(-1);
        let mut cluster_of_token = I::new(0);
        let mut norm = f32::new(0.0);
        if holds {
            position = positions[at::<I>(positions, batch, head, column)];
            cluster_of_token = cluster;
            let row = usize::cast_from(rows[at::<I>(rows, batch, head, column)]);
            norm = norms[at::<f32>(norms, batch, head, column)]
                * lengths[at::<f32>(lengths, batch, head, row)];
            let of_cluster = first_cluster + usize::cast_from(cluster);
            if usize::cast_from(representatives[at::<I>(representatives, batch, head, of_cluster)])
                == column
            {
                write::<I>(
                    new_representatives,
                    batch,
                    head,
                    of_cluster,
                    I::cast_from(place - first),
                );
            }
        }
        write::<I>(new_positions, batch, head, place, position);
        write::<I>(new_clusters, batch, head, place, cluster_of_token);
        write::<f32>(new_norms, batch, head, place, norm);
        if comptime!(counted) {
            let group = statistics.shape(1) / heads;
            let batches = columns.shape(0);
            let kinds = statistics.shape(0) / batches;
            for one in 0..kinds * group {
                let row = one / group * batches + batch;
                let of_group = head * group + one % group;
                let mut number = f32::new(0.0);
                if holds {
                    number = statistics[at::<f32>(statistics, row, of_group, column)];
                }
                write::<f32>(new_statistics, row, of_group, place, number);
            }
        }
    }
}
