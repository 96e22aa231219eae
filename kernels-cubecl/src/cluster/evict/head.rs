//! A head of clusters.

use cubecl::prelude::*;

use crate::common::{eviction::limits::of_token, line::at};

/// Numbers of a head and token in a table: last clusters that stay, 1 where a free row is taken,
/// the clusters before, and the most tokens before and afterwards.
pub(super) const NUMBERS: usize = 5;

/// The first and the last clusters that stay, and the most tokens that a head holds before and
/// afterwards: the same of all heads, unless they `differ`.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Bounds {
    sinks: usize,
    recent: usize,
    before: usize,
    most: usize,
    #[cube(comptime)]
    differ: bool,
}

/// A head, and its places among columns and rows.
#[derive(CubeType, Clone, Copy)]
pub(super) struct ClusteredHead {
    pub(super) batch: usize,
    pub(super) head: usize,
    /// Its first row.
    pub(super) start: usize,
    /// Number of its clusters.
    pub(super) count: usize,
    /// Whether the new token takes a free row behind them, and no cluster goes.
    pub(super) takes_free: bool,
    /// The column of its first cluster's representative.
    pub(super) first_cluster: usize,
    /// The column that representatives are counted from.
    pub(super) first_column: usize,
    /// Number of first clusters that stay.
    pub(super) sinks: usize,
    /// Number of last clusters that stay.
    pub(super) recent: usize,
    /// The most tokens that it holds afterwards.
    pub(super) most: usize,
}

/// The head of a list.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(super) fn head_of<I: Int>(
    offsets: &Tensor<I>,
    limits: &Tensor<I>,
    new_positions: &Tensor<I>,
    list: usize,
    heads: usize,
    height: usize,
    columns: usize,
    bounds: &Bounds,
) -> ClusteredHead {
    let start = usize::cast_from(offsets[list * offsets.stride(0)]);
    let rows = usize::cast_from(offsets[(list + 1) * offsets.stride(0)]) - start;
    let (batch, head) = (list / heads, list % heads);
    let mut numbers = (bounds.sinks, bounds.recent, bounds.before, bounds.most);
    let mut count = rows;
    let mut takes_free = false.runtime();
    if comptime!(bounds.differ) {
        let newest = usize::cast_from(new_positions[at::<I>(new_positions, batch, head, 0)]);
        let own = of_token::<I>(limits, list, newest, NUMBERS);
        let step = limits.stride(1);
        numbers = (
            usize::cast_from(limits[list * limits.stride(0) + step]),
            usize::cast_from(limits[own]),
            usize::cast_from(limits[own + 3 * step]),
            usize::cast_from(limits[own + 4 * step]),
        );
        takes_free = limits[own + step] > I::new(0);
        count = usize::cast_from(limits[own + 2 * step]);
    }
    let (sinks, recent, before, most) = numbers;
    ClusteredHead {
        batch,
        head,
        start,
        count,
        takes_free,
        first_cluster: height - rows,
        first_column: columns - before,
        sinks,
        recent,
        most,
    }
}
