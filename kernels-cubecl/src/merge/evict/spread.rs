use cubecl::prelude::*;

use super::kernel::goes;
use crate::common::{
    eviction::{
        head::{Head, head_of, index, is_entry, number, position},
        weakest::UNITS,
    },
    line::at,
};

/// Adds the value of the entry of each head that goes to those of the next tokens by position, as
/// many as `window`. A cube a head.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn spread<E: Float, I: Int>(
    values: &mut Tensor<E>,
    new_values: &mut Tensor<E>,
    positions: &Tensor<I>,
    new_positions: &Tensor<I>,
    scores: &Tensor<f32>,
    attention: &Tensor<f32>,
    drawn: &Tensor<f32>,
    offsets: &Tensor<I>,
    limits: &Tensor<I>,
    channels: usize,
    sinks: usize,
    recent: usize,
    takes_free: usize,
    #[comptime] window: usize,
    #[comptime] is_ragged: bool,
    #[comptime] differ: bool,
    #[comptime] has_free_slots: bool,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let unit = UNIT_POS as usize;
    let list = CUBE_POS;
    if list >= scores.shape(0) * scores.shape(1) {
        terminate!();
    }
    let head = head_of::<I>(scores, offsets, list, is_ragged);
    let gone = goes::<I>(
        positions,
        new_positions,
        scores,
        limits,
        &head,
        list,
        sinks,
        recent,
        takes_free,
        is_ragged,
        differ,
        has_free_slots,
    );

    // The next tokens by position, each one's column and one more.
    let mut next = Shared::<[u32]>::new_slice(window);
    let mut place = unit;
    while place < window {
        next[place] = 0u32;
        place += UNITS;
    }
    sync_cube();
    if is_entry::<I>(positions, &head, gone, has_free_slots) {
        let own = position::<I>(positions, new_positions, &head, gone, is_ragged);
        let mut column = head.first + unit;
        while column <= head.newest {
            let of_column = position::<I>(positions, new_positions, &head, column, is_ragged);
            if of_column > own && is_entry::<I>(positions, &head, column, has_free_slots) {
                let mut between = 0usize.runtime();
                for other in head.first..head.newest + 1 {
                    let other = position::<I>(positions, new_positions, &head, other, is_ragged);
                    if other > own && other < of_column {
                        between += 1;
                    }
                }
                if between < window {
                    next[between] = u32::cast_from(column) + 1;
                }
            }
            column += UNITS;
        }
    }
    sync_cube();

    let mut tokens = 0usize.runtime();
    let mut sum = f32::new(0.0);
    for place in 0..window {
        let column = next[place] as usize;
        if column > 0 {
            tokens += 1;
            sum += attention[at::<f32>(attention, head.batch, head.head, column - 1)];
        }
    }
    let of_gone = at::<f32>(drawn, head.batch, head.head, gone);
    let of_attention = at::<f32>(attention, head.batch, head.head, gone);
    let number_of = f32::cast_from(tokens);
    if drawn[of_gone] * sum < attention[of_attention] * number_of {
        let share = f32::new(1.0) / number_of;
        let mut channel = unit;
        while channel < channels {
            let from = number::<E>(&*values, &*new_values, &head, gone, channel, is_ragged);
            let added = f32::cast_from(from) * share;
            for place in 0..tokens {
                let column = next[place] as usize - 1;
                add::<E>(values, new_values, &head, column, channel, added, is_ragged);
            }
            channel += UNITS;
        }
    }
}

/// Adds to a number of a column's row.
#[cube]
fn add<E: Float>(
    rows: &mut Tensor<E>,
    new_rows: &mut Tensor<E>,
    head: &Head,
    column: usize,
    channel: usize,
    added: f32,
    #[comptime] is_ragged: bool,
) {
    let before = number::<E>(&*rows, &*new_rows, head, column, channel, is_ragged);
    let sum = E::cast_from(f32::cast_from(before) + added);
    if comptime!(is_ragged) {
        if column < head.newest {
            let to = index::<E>(&*rows, head, column, channel, is_ragged);
            rows[to] = sum;
        } else {
            let to = at::<E>(&*new_rows, head.batch, head.head, 0) + channel * new_rows.stride(3);
            new_rows[to] = sum;
        }
    } else {
        let to = index::<E>(&*rows, head, column, channel, is_ragged);
        rows[to] = sum;
    }
}
