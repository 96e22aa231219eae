use cubecl::prelude::*;

use crate::common::line::write;

/// Units of a cube.
pub(super) const UNITS: usize = 256;

/// Mean attention of a column over the query heads of a group.
#[cube]
fn group_mean(
    track: &Tensor<f32>,
    batch: usize,
    head: usize,
    column: usize,
    #[comptime] group: usize,
) -> f32 {
    let mut sum = f32::new(0.0);
    #[unroll]
    for one in 0..group {
        sum += track[batch * track.stride(0)
            + (head * group + one) * track.stride(1)
            + column * track.stride(2)];
    }
    sum / comptime!(group as f32)
}

/// Attention of the queries of both windows to a column.
#[cube]
fn local(
    past: &Tensor<f32>,
    current: &Tensor<f32>,
    batch: usize,
    head: usize,
    column: usize,
    #[comptime] group: usize,
) -> f32 {
    group_mean(past, batch, head, column, group) + group_mean(current, batch, head, column, group)
}

/// Ratio of the attention of the windows' queries to that of all queries, over all columns,
/// `[batch, heads]`. One cube per head.
#[cube(launch)]
pub(super) fn level(
    sums: &Tensor<f32>,
    past: &Tensor<f32>,
    current: &Tensor<f32>,
    levels: &mut Tensor<f32>,
    #[comptime] group: usize,
) {
    let unit = UNIT_POS as usize;
    let list = CUBE_POS_X as usize;
    let heads = levels.shape(1);
    let columns = sums.shape(2);
    let (batch, head) = (list / heads, list % heads);
    let mut of_all = Shared::<[f32]>::new_slice(UNITS);
    let mut of_windows = Shared::<[f32]>::new_slice(UNITS);
    let mut all = f32::new(0.0);
    let mut windows = f32::new(0.0);
    let mut column = unit;
    while column < columns {
        all += group_mean(sums, batch, head, column, group);
        windows += local(past, current, batch, head, column, group);
        column += UNITS;
    }
    of_all[unit] = all;
    of_windows[unit] = windows;
    sync_cube();
    let mut half = comptime!(UNITS / 2).runtime();
    while half > 0 {
        if unit < half {
            let (all, windows) = (of_all[unit + half], of_windows[unit + half]);
            of_all[unit] += all;
            of_windows[unit] += windows;
        }
        sync_cube();
        half /= 2;
    }
    if unit == 0 {
        // Columns without attention have none from the windows.
        let place = batch * levels.stride(0) + head * levels.stride(1);
        levels[place] = of_windows[0] / (of_all[0] + f32::MIN_POSITIVE);
    }
}

/// See [`super::global_local`]. A unit a column; cubes along y are heads.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn global_local(
    sums: &Tensor<f32>,
    past: &Tensor<f32>,
    current: &Tensor<f32>,
    levels: &Tensor<f32>,
    scores: &mut Tensor<f32>,
    outside: usize,
    reach: usize,
    #[comptime] highest: bool,
    #[comptime] group: usize,
) {
    let column = CUBE_POS_X as usize * UNITS + UNIT_POS as usize;
    let list = CUBE_POS_Y as usize;
    let heads = scores.shape(1);
    let (batch, head) = (list / heads, list % heads);
    let columns = scores.shape(2);
    if column < columns {
        let level = levels[batch * levels.stride(0) + head * levels.stride(1)];
        let first = column.max(reach) - reach;
        let end = (column + reach + 1).min(columns);
        let mut sum = f32::new(0.0);
        let mut most = f32::new(f32::MIN);
        for other in first..end {
            // Columns of the window have the score zero.
            let mut score = f32::new(0.0);
            if other < outside {
                let global = group_mean(sums, batch, head, other, group) * level;
                score = global.max(local(past, current, batch, head, other, group));
            }
            sum += score;
            most = most.max(score);
        }
        let mut pooled = sum / f32::cast_from(2 * reach + 1);
        if comptime!(highest) {
            pooled = most;
        }
        write::<f32>(scores, batch, head, column, pooled);
    }
}
