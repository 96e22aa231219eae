use cubecl::prelude::*;

use super::kernel::{Bounds, goes};
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
    bounds: &Bounds,
    #[comptime] window: usize,
    #[comptime] is_ragged: bool,
    #[comptime] has_free_slots: bool,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let unit = UNIT_POS as usize;
    let list = CUBE_POS;
    if list >= scores.shape(0) * scores.shape(1) {
        terminate!();
    }
    let head = head_of::<I>(scores, offsets, list, is_ragged, has_free_slots);
    let gone = goes::<I>(positions, new_positions, scores, limits, bounds, &head, list);

    // The next tokens by position, each one's column and one more.
    let mut next = Shared::<[u32]>::new_slice(window);
    let mut place = unit;
    while place < window {
        next[place] = 0u32;
        place += UNITS;
    }
    sync_cube();
    if is_entry::<I>(positions, &head, gone) {
        let own = position::<I>(positions, new_positions, &head, gone);
        let mut column = head.first + unit;
        while column <= head.newest {
            let of_column = position::<I>(positions, new_positions, &head, column);
            if of_column > own && is_entry::<I>(positions, &head, column) {
                let mut between = 0usize.runtime();
                for other in head.first..head.newest + 1 {
                    let other = position::<I>(positions, new_positions, &head, other);
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
            let from = number::<E>(&*values, &*new_values, &head, gone, channel);
            let added = f32::cast_from(from) * share;
            for place in 0..tokens {
                let column = next[place] as usize - 1;
                add::<E>(values, new_values, &head, column, channel, added);
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
) {
    let before = number::<E>(&*rows, &*new_rows, head, column, channel);
    let sum = E::cast_from(f32::cast_from(before) + added);
    if comptime!(head.is_ragged) {
        if column < head.newest {
            let to = index::<E>(&*rows, head, column, channel);
            rows[to] = sum;
        } else {
            let to = at::<E>(&*new_rows, head.batch, head.head, 0) + channel * new_rows.stride(3);
            new_rows[to] = sum;
        }
    } else {
        let to = index::<E>(&*rows, head, column, channel);
        rows[to] = sum;
    }
}
