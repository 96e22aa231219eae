use cubecl::prelude::*;

use super::pattern::{Pattern, first_key_of, is_whole};
use crate::{
    attention::scoring::{ScoreArgs, ScoreKinds},
    common::{
        masked::MASKED,
        tile::portable::{OWN, SIDE, UNITS, products, rows_of, slices},
    },
};

/// Keys whose values are in shared memory at a time.
const VALUES: usize = 8;

/// Compile-time parameters of all kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PrefillBlueprint {
    pub(super) head_dim: usize,
    /// Whether positions say which entries a query sees.
    pub(super) by_position: bool,
    /// Whether a pattern says which tiles are computed, and what is seen within.
    pub(super) sparse: bool,
    pub(super) kinds: ScoreKinds,
}

impl PrefillBlueprint {
    /// Whether keys lie before the window of all queries of a cube, which are not read.
    pub(super) const fn skips(self) -> bool {
        self.kinds.window && !self.by_position
    }
}

/// See [`super::attention`]: any type, any strides, sums in f32.
#[cube(launch)]
// The outer condition of two is decided when the kernel is expanded.
#[allow(clippy::too_many_arguments, clippy::collapsible_if)]
pub(super) fn attention_tiled<Q: Float, K: Float, I: Int>(
    queries: &Tensor<Q>,
    keys: &Tensor<K>,
    values: &Tensor<K>,
    query_positions: &Tensor<I>,
    entry_positions: &Tensor<I>,
    pattern: &ComptimeOption<Pattern>,
    output: &mut Tensor<Q>,
    log_sum_exp: &mut Tensor<f32>,
    scoring: &ScoreArgs,
    #[comptime] blueprint: PrefillBlueprint,
    #[define(Q, K, I)] _types: [ElemType; 3],
) {
    let PrefillBlueprint { head_dim, by_position, sparse, kinds } = blueprint;
    let channels = comptime!(head_dim.div_ceil(8));
    let unit = UNIT_POS as usize;
    let pair = unit / 8;
    let part = unit % 8;
    let new = queries.shape(2);
    let entries = keys.shape(2);
    let old = entries - new;
    let head = CUBE_POS_Y as usize;
    let batch = CUBE_POS_Z as usize;
    let kv_head = head / (queries.shape(1) / keys.shape(1));
    let first = (new.div_ceil(SIDE) - 1 - CUBE_POS_X as usize) * SIDE;
    let query_rows = rows_of::<Q>(queries, batch, head);
    let key_rows = rows_of::<K>(keys, batch, kv_head);
    let value_rows = rows_of::<K>(values, batch, kv_head);

    let mut slices = slices();
    let mut weights = Shared::<[f32]>::new_slice(comptime!(SIDE * (SIDE + 1)));
    let mut stage = Shared::<[f32]>::new_slice(comptime!(VALUES * head_dim));
    let mut partial = Shared::<[f32]>::new_slice(comptime!(SIDE * 8));

    // Two rows of this unit.
    let mut positions = Array::<i32>::new(2usize);
    let mut highest = Array::<f32>::new(2usize);
    let mut total = Array::<f32>::new(2usize);
    let mut sums = Array::<f32>::new(comptime!(2 * channels));
    #[unroll]
    for row in 0..2usize {
        let query = first + pair * 2 + row;
        let mut position = i32::cast_from(query + old);
        if comptime!(by_position) {
            let start = batch * query_positions.stride(0);
            let place = start + query.min(new - 1) * query_positions.stride(2);
            position = i32::cast_from(query_positions[place]);
        }
        positions[row] = position;
        highest[row] = MASKED;
        total[row] = 0.0;
    }
    #[unroll]
    for sum in 0..comptime!(2 * channels) {
        sums[sum] = 0.0;
    }

    let mut seen = entries;
    if comptime!(!by_position) {
        seen = (first + SIDE + old).min(entries);
    }
    let mut count = seen.div_ceil(SIDE);
    let mut start = 0usize.runtime();
    if comptime!(blueprint.skips()) {
        start = scoring.first_seen(first + old, kinds) / SIDE * SIDE;
        count -= start / SIDE;
    }
    let mut list = 0usize.runtime();
    let mut words = 0usize.runtime();
    if comptime!(sparse) {
        let pattern = pattern.as_ref().unwrap();
        list = pattern.list(batch, head, first);
        words = pattern.words(batch, head);
        count = pattern.count(list);
    }
    for number in 0..count {
        let mut base = number * SIDE;
        if comptime!(blueprint.skips()) {
            base += start;
        }
        let mut whole = true.runtime();
        if comptime!(sparse) {
            let pattern = pattern.as_ref().unwrap();
            let tile = pattern.tile(list, number);
            base = first_key_of(tile);
            whole = is_whole(tile);
        }
        let mut scores = products::<Q, K>(
            queries,
            query_rows,
            first,
            keys,
            key_rows,
            base,
            &mut slices,
            head_dim,
        );
        #[unroll]
        for column in 0..comptime!(OWN / 2) {
            let entry = base + part + 8 * column;
            let mut position = i32::cast_from(entry);
            if comptime!(by_position) {
                let start = batch * entry_positions.stride(0) + kv_head * entry_positions.stride(1);
                let place = start + entry.min(entries - 1) * entry_positions.stride(2);
                position = i32::cast_from(entry_positions[place]);
            }
            let hidden = position < 0 || entry >= entries;
            #[unroll]
            for row in 0..2usize {
                let own = row * 4 + column;
                let distance = position - positions[row];
                let mut hidden = hidden || position > positions[row];
                if comptime!(kinds.window) {
                    hidden = hidden || scoring.hides(distance, positions[row], kinds);
                }
                if comptime!(sparse) {
                    if !whole && !hidden {
                        let pattern = pattern.as_ref().unwrap();
                        hidden = !pattern.sees(words, entry, positions[row], position);
                    }
                }
                let score = scoring.score(scores[own] * scoring.scale, head, distance, kinds);
                scores[own] = select(hidden, MASKED, score);
            }
        }

        // The highest of each row.
        #[unroll]
        for row in 0..2usize {
            let mut high = scores[row * 4];
            #[unroll]
            for column in 1..4usize {
                high = high.max(scores[row * 4 + column]);
            }
            partial[(pair * 2 + row) * 8 + part] = high;
        }
        sync_cube();
        #[unroll]
        for row in 0..2usize {
            let mut high = highest[row];
            #[unroll]
            for other in 0..8usize {
                high = high.max(partial[(pair * 2 + row) * 8 + other]);
            }
            let kept = (highest[row] - high).exp();
            highest[row] = high;
            total[row] *= kept;
            #[unroll]
            for channel in 0..channels {
                sums[row * channels + channel] *= kept;
            }
            #[unroll]
            for column in 0..4usize {
                let weight = (scores[row * 4 + column] - high).exp();
                weights[(pair * 2 + row) * comptime!(SIDE + 1) + part + 8 * column] = weight;
            }
        }
        sync_cube();

        for eight in 0..comptime!(SIDE / VALUES) {
            let mut index = unit;
            while index < comptime!(VALUES * head_dim) {
                let row = (base + eight * VALUES + index / head_dim).min(value_rows.last);
                let place = value_rows.start + row * value_rows.row;
                let place = place + index % head_dim * value_rows.channel;
                stage[index] = f32::cast_from(values[place]);
                index += UNITS;
            }
            sync_cube();
            #[unroll]
            for row in 0..2usize {
                #[unroll]
                for key in 0..VALUES {
                    let weight =
                        weights[(pair * 2 + row) * comptime!(SIDE + 1) + eight * VALUES + key];
                    total[row] += weight;
                    #[unroll]
                    for channel in 0..channels {
                        let place = part + 8 * channel;
                        if comptime!(head_dim.is_multiple_of(8)) || place < head_dim {
                            sums[row * channels + channel] +=
                                weight * stage[key * head_dim + place];
                        }
                    }
                }
            }
            sync_cube();
        }
    }

    #[unroll]
    for row in 0..2usize {
        let query = first + pair * 2 + row;
        if query < new {
            let mut blank = positions[row] < 0;
            if comptime!(kinds.window) {
                blank = blank || highest[row] <= MASKED;
            }
            let mut kept = f32::new(1.0);
            if comptime!(kinds.sinks) {
                let (high, all, less) = scoring.with_sink(highest[row], total[row], head);
                highest[row] = high;
                total[row] = all;
                kept = less;
            }
            let factor = select(blank, 0.0, kept / total[row]);
            let start =
                batch * output.stride(0) + head * output.stride(1) + query * output.stride(2);
            let step = output.stride(3);
            #[unroll]
            for channel in 0..channels {
                let place = part + 8 * channel;
                if place < head_dim {
                    output[start + place * step] =
                        Q::cast_from(sums[row * channels + channel] * factor);
                }
            }
            if part == 0 {
                let start = batch * log_sum_exp.stride(0) + head * log_sum_exp.stride(1);
                let place = start + query * log_sum_exp.stride(2);
                log_sum_exp[place] =
                    select(blank, -f32::new(MASKED), highest[row] + total[row].ln());
            }
        }
    }
}
