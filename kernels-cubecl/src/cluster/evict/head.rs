//! A head of clusters.

use cubecl::prelude::*;

/// A head, and its places among columns and rows.
#[derive(CubeType, Clone, Copy)]
pub(super) struct ClusteredHead {
    pub(super) batch: usize,
    pub(super) head: usize,
    /// Its first row.
    pub(super) start: usize,
    /// Number of its clusters.
    pub(super) count: usize,
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
    list: usize,
    heads: usize,
    height: usize,
    columns: usize,
    sinks: usize,
    recent: usize,
    before: usize,
    most: usize,
    #[comptime] differ: bool,
) -> ClusteredHead {
    let start = usize::cast_from(offsets[list * offsets.stride(0)]);
    let count = usize::cast_from(offsets[(list + 1) * offsets.stride(0)]) - start;
    let mut numbers = (sinks, recent, before, most);
    if comptime!(differ) {
        let row = list * limits.stride(0);
        let step = limits.stride(1);
        numbers = (
            usize::cast_from(limits[row]),
            usize::cast_from(limits[row + step]),
            usize::cast_from(limits[row + 2 * step]),
            usize::cast_from(limits[row + 3 * step]),
        );
    }
    let (sinks, recent, before, most) = numbers;
    ClusteredHead {
        batch: list / heads,
        head: list % heads,
        start,
        count,
        first_cluster: height - count,
        first_column: columns - before,
        sinks,
        recent,
        most,
    }
}
