use cubecl::prelude::*;

use crate::{
    attention::scoring::{ScoreArgs, ScoreKinds},
    common::{
        line::write,
        tile::portable::{SIDE, products, rows_of, slices},
    },
};

/// Compile-time parameters of all kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ColumnSumsBlueprint {
    pub(super) head_dim: usize,
    /// Whether positions say which entries a query sees.
    pub(super) by_position: bool,
    /// Whether the sums over the last queries are wanted.
    pub(super) local: bool,
    /// Whether sums of squares are wanted.
    pub(super) squares: bool,
    pub(super) kinds: ScoreKinds,
}

impl ColumnSumsBlueprint {
    /// Whether the last queries may see no key of a cube, and are not read then.
    pub(super) const fn skips(self) -> bool {
        self.kinds.window && !self.by_position
    }
}

/// Adds up what the eight units of a row have, in order, and writes it.
#[cube]
fn write_sums(
    sums: &mut Tensor<f32>,
    partial: &mut Shared<[f32]>,
    own: &Array<f32>,
    batch: usize,
    head: usize,
    first: usize,
    entries: usize,
) {
    let unit = UNIT_POS as usize;
    #[unroll]
    for row in 0..2usize {
        partial[(unit / 8 * 2 + row) * 8 + unit % 8] = own[row];
    }
    sync_cube();
    let entry = first + unit;
    if unit < SIDE && entry < entries {
        let mut total = f32::new(0.0);
        #[unroll]
        for other in 0..8usize {
            total += partial[unit * 8 + other];
        }
        write::<f32>(sums, batch, head, entry, total);
    }
    sync_cube();
}

/// See [`super::column_scores`]: any type, any strides.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn column_scores_tiled<Q: Float, K: Float, I: Int>(
    queries: &Tensor<Q>,
    keys: &Tensor<K>,
    log_sum_exp: &Tensor<f32>,
    query_positions: &Tensor<I>,
    entry_positions: &Tensor<I>,
    sums: &mut Tensor<f32>,
    local_sums: &mut Tensor<f32>,
    squares: &mut Tensor<f32>,
    local_queries: usize,
    scoring: &ScoreArgs,
    #[comptime] blueprint: ColumnSumsBlueprint,
    #[define(Q, K, I)] _types: [ElemType; 3],
) {
    let ColumnSumsBlueprint { head_dim, by_position, local, squares: squared, kinds } = blueprint;
    let unit = UNIT_POS as usize;
    let pair = unit / 8;
    let part = unit % 8;
    let new = queries.shape(2);
    let entries = keys.shape(2);
    let old = entries - new;
    let head = CUBE_POS_Y as usize;
    let batch = CUBE_POS_Z as usize;
    let kv_head = head / (queries.shape(1) / keys.shape(1));
    let first = CUBE_POS_X as usize * SIDE;
    let local_start = new - local_queries;
    let query_rows = rows_of::<Q>(queries, batch, head);
    let key_rows = rows_of::<K>(keys, batch, kv_head);
    let lse_start = batch * log_sum_exp.stride(0) + head * log_sum_exp.stride(1);
    let mut slices = slices();

    // Rows are keys, columns queries.
    let mut key_positions = Array::<i32>::new(2usize);
    let mut weights = Array::<f32>::new(2usize);
    let mut local_weights = Array::<f32>::new(2usize);
    let mut squared_weights = Array::<f32>::new(2usize);
    #[unroll]
    for row in 0..2usize {
        let entry = first + pair * 2 + row;
        let mut position = i32::cast_from(entry);
        if comptime!(by_position) {
            let start = batch * entry_positions.stride(0) + kv_head * entry_positions.stride(1);
            let place = start + entry.min(entries - 1) * entry_positions.stride(2);
            position = i32::cast_from(entry_positions[place]);
        }
        key_positions[row] = position;
        weights[row] = 0.0;
        local_weights[row] = 0.0;
        squared_weights[row] = 0.0;
    }

    let mut base = 0usize.runtime();
    if comptime!(!by_position) && first > old {
        base = (first - old) / SIDE * SIDE;
    }
    let mut end = new;
    if comptime!(blueprint.skips()) {
        end = scoring.end_of_sight(first + SIDE - 1, kinds).max(old) - old;
        end = end.min(new);
    }
    while base < end {
        let scores = products::<K, Q>(
            keys,
            key_rows,
            first,
            queries,
            query_rows,
            base,
            &mut slices,
            head_dim,
        );
        #[unroll]
        for column in 0..4usize {
            let query = base + part + 8 * column;
            if query < new {
                let offset = log_sum_exp[lse_start + query * log_sum_exp.stride(2)];
                let mut position = i32::cast_from(query + old);
                if comptime!(by_position) {
                    let place =
                        batch * query_positions.stride(0) + query * query_positions.stride(2);
                    position = i32::cast_from(query_positions[place]);
                }
                #[unroll]
                for row in 0..2usize {
                    let distance = key_positions[row] - position;
                    let mut seen = key_positions[row] >= 0 && key_positions[row] <= position;
                    if comptime!(kinds.window) {
                        seen = seen && !scoring.hides(distance, position, kinds);
                    }
                    if seen {
                        let scaled = scores[row * 4 + column] * scoring.scale;
                        let score = scoring.score(scaled, head, distance, kinds);
                        let weight = (score - offset).exp();
                        weights[row] += weight;
                        if comptime!(squared) {
                            squared_weights[row] += weight * weight;
                        }
                        if comptime!(local) && query >= local_start {
                            local_weights[row] += weight;
                        }
                    }
                }
            }
        }
        base += SIDE;
    }

    let mut partial = Shared::<[f32]>::new_slice(comptime!(SIDE * 8));
    write_sums(sums, &mut partial, &weights, batch, head, first, entries);
    if comptime!(local) {
        write_sums(local_sums, &mut partial, &local_weights, batch, head, first, entries);
    }
    if comptime!(squared) {
        write_sums(squares, &mut partial, &squared_weights, batch, head, first, entries);
    }
}
