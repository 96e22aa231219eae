//! A head whose entries lie in no order, and its rows of keys and values.

use cubecl::prelude::*;

use crate::common::line::at;

/// A head of a layer.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) batch: usize,
    pub(crate) head: usize,
    /// Its first column that is an entry.
    pub(crate) first: usize,
    /// The column of the new token, behind all others.
    pub(crate) newest: usize,
    /// The end of its rows in a list.
    pub(crate) end: usize,
    /// Whether its rows are in a list, and the new token's elsewhere.
    #[cube(comptime)]
    pub(crate) is_ragged: bool,
    /// Whether columns before the new token's may be free slots.
    #[cube(comptime)]
    pub(crate) has_free_slots: bool,
}

/// The head of a list, and its place among columns and rows.
#[cube]
pub(crate) fn head_of<I: Int>(
    scores: &Tensor<f32>,
    offsets: &Tensor<I>,
    list: usize,
    #[comptime] is_ragged: bool,
    #[comptime] has_free_slots: bool,
) -> Head {
    let (heads, newest) = (scores.shape(1), scores.shape(2) - 1);
    let mut first = 0usize.runtime();
    let mut end = 0usize.runtime();
    if comptime!(is_ragged) {
        let start = usize::cast_from(offsets[list * offsets.stride(0)]);
        end = usize::cast_from(offsets[(list + 1) * offsets.stride(0)]);
        first = newest + start - end;
    }
    let (batch, head) = (list / heads, list % heads);
    Head { batch, head, first, newest, end, is_ragged, has_free_slots }
}

/// The position of the token in a column.
#[cube]
pub(crate) fn position<I: Int>(
    positions: &Tensor<I>,
    new_positions: &Tensor<I>,
    head: &Head,
    column: usize,
) -> usize {
    let (batch, head_number) = (head.batch, head.head);
    if comptime!(head.is_ragged) {
        let mut found = new_positions[at::<I>(new_positions, batch, head_number, 0)];
        if column < head.newest {
            found = positions[at::<I>(positions, batch, head_number, column)];
        }
        usize::cast_from(found)
    } else {
        usize::cast_from(positions[at::<I>(positions, batch, head_number, column)])
    }
}

/// Whether a token is in a column, and no free slot.
#[cube]
pub(crate) fn is_entry<I: Int>(positions: &Tensor<I>, head: &Head, column: usize) -> bool {
    let mut is_entry = true.runtime();
    if comptime!(head.has_free_slots) && column < head.newest {
        is_entry = positions[at::<I>(positions, head.batch, head.head, column)] >= I::new(0);
    }
    is_entry
}

/// Index of a channel of a column's row, which lies among those of the entries.
#[cube]
pub(crate) fn index<E: CubePrimitive>(
    rows: &Tensor<E>,
    head: &Head,
    column: usize,
    channel: usize,
) -> usize {
    if comptime!(head.is_ragged) {
        let row = head.end + column - head.newest;
        row * rows.stride(0) + channel * rows.stride(1)
    } else {
        at::<E>(rows, head.batch, head.head, column) + channel * rows.stride(3)
    }
}

/// A number of a column's row; the new token's may lie elsewhere.
#[cube]
pub(crate) fn number<E: Float>(
    rows: &Tensor<E>,
    new_rows: &Tensor<E>,
    head: &Head,
    column: usize,
    channel: usize,
) -> E {
    if comptime!(head.is_ragged) {
        let row = at::<E>(new_rows, head.batch, head.head, 0);
        let mut found = new_rows[row + channel * new_rows.stride(3)];
        if column < head.newest {
            found = rows[index::<E>(rows, head, column, channel)];
        }
        found
    } else {
        rows[index::<E>(rows, head, column, channel)]
    }
}
