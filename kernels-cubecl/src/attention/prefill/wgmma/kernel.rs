use cubecl::prelude::*;

use crate::common::{
    masked::MASKED,
    tile::{
        mma::Pair,
        wgmma::{
            ALIGNMENT, DEPTH, GROUP, PANEL, ROWS, along_columns, along_rows, ask, ask_scores,
            barrier_of, commit, descriptor, fence, group_of_unit, multiply_rows, part, pin,
            wait_for_all_but,
        },
    },
};

/// Blocks of keys, and of values, in shared memory: one that is multiplied, one on its way.
const STAGES: usize = 2;

/// Compile-time parameters of [`attention_groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct AttentionGroupsBlueprint {
    /// A multiple of 64 up to 128.
    pub(super) head_dim: usize,
    /// Groups, each with 64 queries.
    pub(super) groups: usize,
    /// Keys of a block.
    pub(super) keys: usize,
}

impl AttentionGroupsBlueprint {
    /// Queries of a cube.
    pub(super) const fn queries(self) -> usize {
        self.groups * ROWS
    }

    /// Units of a cube. None is set apart to ask for what comes next: registers are given to four
    /// planes at a time, and those of two groups need all there are.
    pub(super) const fn units(self) -> usize {
        self.groups * GROUP
    }

    /// Numbers of a block of keys, or of values.
    const fn size(self) -> usize {
        self.keys * self.head_dim
    }
}

/// Asks for the sums of a block's values, by weights.
#[cube]
fn ask_values<E: Float>(
    sums: &mut Array<f32>,
    weights: &Sequence<Array<E>>,
    values: u64,
    #[comptime] blueprint: AttentionGroupsBlueprint,
) {
    let AttentionGroupsBlueprint { head_dim, keys: block, .. } = blueprint;
    let layout = comptime!(along_columns(block, head_dim));
    pin::<f32>(&*sums);
    #[unroll]
    for depth in 0..comptime!(block / DEPTH) {
        pin::<E>(&weights[depth]);
    }
    fence();
    #[unroll]
    for depth in 0..comptime!(block / DEPTH) {
        let tile = values + comptime!(part(layout, depth));
        multiply_rows::<E>(sums, &weights[depth], tile, head_dim);
    }
    commit();
}

/// Numbers of a unit's two rows.
#[derive(CubeType)]
struct Rows {
    /// The last entry that the first row sees; the other sees eight more.
    position: usize,
    /// The highest score so far.
    highest: Array<f32>,
    /// The sum of this unit's weights, relative to the highest score.
    total: Array<f32>,
    /// The factor of sums since the highest score has moved.
    kept: Array<f32>,
}

/// Turns scores of the entries from `base` on into weights. Hidden are those behind the position of
/// a row; of a block that is `whole` none is.
#[cube]
fn weigh(
    scores: &mut Array<f32>,
    rows: &mut Rows,
    base: usize,
    whole: bool,
    scale: f32,
    #[comptime] block: usize,
) {
    let long = comptime!(block / 8);
    if !whole {
        let first = base + UNIT_POS_PLANE as usize % 4 * 2;
        #[unroll]
        for place in 0..comptime!(block / 2) {
            let column = first + comptime!(place / 4 * 8 + place % 2);
            let hidden = column > rows.position + comptime!(place / 2 % 2 * 8);
            scores[place] = select(hidden, MASKED, scores[place]);
        }
    }
    #[unroll]
    for half in 0..2usize {
        let mut most = scores[half * 2];
        #[unroll]
        for tile in 0..long {
            most = most.max(scores[tile * 4 + half * 2].max(scores[tile * 4 + half * 2 + 1]));
        }
        most = most.max(plane_shuffle_xor(most, 1));
        most = most.max(plane_shuffle_xor(most, 2));
        most = most.max(rows.highest[half]);
        let kept = ((rows.highest[half] - most) * scale).exp();
        rows.highest[half] = most;
        rows.kept[half] = kept;
        let offset = select(most > MASKED, most * scale, 0.0);
        let mut sum = rows.total[half] * kept;
        #[unroll]
        for tile in 0..long {
            #[unroll]
            for side in 0..2usize {
                let place = comptime!(tile * 4 + half * 2 + side);
                let weight = fma(scores[place], scale, -offset).exp();
                scores[place] = weight;
                sum += weight;
            }
        }
        rows.total[half] = sum;
    }
}

/// Weights as the product with values takes them.
#[cube]
fn round<E: Float>(
    weights: &mut Sequence<Array<E>>,
    scores: &Array<f32>,
    #[comptime] block: usize,
) {
    #[unroll]
    for depth in 0..comptime!(block / DEPTH) {
        let rounded = &mut weights[depth];
        #[unroll]
        for nth in 0..8usize {
            rounded[nth] = E::cast_from(scores[depth * 8 + nth]);
        }
    }
}

/// See [`super::super::attention`], causally: a group has the scores of the next block multiplied,
/// and the values of this one, and turns those scores into weights while its values are.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn attention_groups<E: Float>(
    queries: &TensorMap<E, Tiled>,
    keys: &TensorMap<E, Tiled>,
    values: &TensorMap<E, Tiled>,
    output: &mut Tensor<Pair<E>>,
    log_sum_exp: &mut Tensor<f32>,
    entries: usize,
    of_kv_head: usize,
    scale: f32,
    #[comptime] blueprint: AttentionGroupsBlueprint,
    #[define(E)] _type: ElemType,
) {
    let AttentionGroupsBlueprint { head_dim, groups, keys: block } = blueprint;
    let own_rows = comptime!(blueprint.queries());
    let query_layout = comptime!(along_rows(own_rows, head_dim));
    let key_layout = comptime!(along_rows(block, head_dim));
    let value_layout = comptime!(along_columns(block, head_dim));
    // Of a stage, as descriptors count.
    let stage_step = comptime!((blueprint.size() / 8) as u64);
    let wide = comptime!(head_dim / 8);

    let unit = UNIT_POS as usize;
    let new = output.shape(2);
    let old = entries - new;
    let head = CUBE_POS_X as usize;
    let batch = CUBE_POS_Z as usize;
    let kv_head = head / of_kv_head;
    // The last queries of all heads see most: they go first.
    let first = (new.div_ceil(own_rows) - 1 - CUBE_POS_Y as usize) * own_rows;
    let blocks = (first + own_rows + old).min(entries).div_ceil(block);

    let mut query_stage =
        Shared::<[E]>::new_aligned_slice(comptime!(own_rows * head_dim), ALIGNMENT);
    let mut key_stages =
        Shared::<[E]>::new_aligned_slice(comptime!(STAGES * blueprint.size()), ALIGNMENT);
    let mut value_stages =
        Shared::<[E]>::new_aligned_slice(comptime!(STAGES * blueprint.size()), ALIGNMENT);
    // Of each stage of keys, then of values, and last of queries: whether it has come; and whether
    // it has been read.
    let full = Shared::<[u64]>::new_slice(comptime!(2 * STAGES + 1));
    let empty = Shared::<[u64]>::new_slice(comptime!(2 * STAGES));
    if unit == 0 {
        #[unroll]
        for stage in 0..comptime!(2 * STAGES) {
            barrier_of(&full[stage]).init_manual(1);
            barrier_of(&empty[stage]).init_manual(comptime!(groups as u32));
        }
        barrier_of(&full[comptime!(2 * STAGES)]).init_manual(1);
    }
    sync_async_proxy_shared();
    sync_cube();

    let asks = unit == 0;
    if asks {
        let of_queries = &full[comptime!(2 * STAGES)];
        ask::<E>(
            of_queries,
            queries,
            &mut query_stage,
            batch,
            head,
            first,
            0usize,
            own_rows,
            head_dim,
        );
        ask::<E>(&full[0], keys, &mut key_stages, batch, kv_head, 0usize, 0usize, block, head_dim);
        if blocks > 1 {
            ask::<E>(
                &full[1],
                keys,
                &mut key_stages,
                batch,
                kv_head,
                block,
                1usize,
                block,
                head_dim,
            );
        }
        ask::<E>(
            &full[STAGES],
            values,
            &mut value_stages,
            batch,
            kv_head,
            0usize,
            0usize,
            block,
            head_dim,
        );
    }

    let group = group_of_unit();
    let elected = unit.is_multiple_of(GROUP);
    let lane = UNIT_POS_PLANE as usize;
    // A unit has two rows, eight apart.
    let row = first + group * ROWS + unit % GROUP / 32 * 16 + lane / 4;
    let of_queries = descriptor::<E>(&query_stage[0], query_layout)
        + group as u64 * comptime!((ROWS * PANEL / 8) as u64);
    let of_keys = descriptor::<E>(&key_stages[0], key_layout);
    let of_values = descriptor::<E>(&value_stages[0], value_layout);

    let mut rows = Rows {
        position: row + old,
        highest: Array::<f32>::new(2usize),
        total: Array::<f32>::new(2usize),
        kept: Array::<f32>::new(2usize),
    };
    #[unroll]
    for half in 0..2usize {
        rows.highest[half] = MASKED;
        rows.total[half] = 0.0;
    }
    let mut sums = Array::<f32>::new(comptime!(head_dim / 2));
    #[unroll]
    for place in 0..comptime!(head_dim / 2) {
        sums[place] = 0.0;
    }
    let mut scores = Array::<f32>::new(comptime!(block / 2));
    let mut weights = Sequence::<Array<E>>::new();
    #[unroll]
    for _ in 0..comptime!(block / DEPTH) {
        weights.push(Array::<E>::new(8usize));
    }
    // Entries that all queries of the group see.
    let seen_by_all = first + group * ROWS + old + 1;

    barrier_of(&full[comptime!(2 * STAGES)]).wait_parity(0);
    barrier_of(&full[0]).wait_parity(0);
    ask_scores::<E>(&mut scores, of_queries, of_keys, own_rows, block, head_dim);
    wait_for_all_but(0usize);
    pin::<f32>(&scores);
    if elected {
        barrier_of(&empty[0]).arrive();
    }
    weigh(&mut scores, &mut rows, 0usize, block <= seen_by_all, scale, block);
    round::<E>(&mut weights, &scores, block);

    for number in 1..blocks {
        // Scores of this block, values of the one before.
        let (stage, before) = (number % STAGES, (number - 1) % STAGES);
        let phase = (number / STAGES % 2) as u32;
        let before_phase = ((number - 1) / STAGES % 2) as u32;
        if asks && number + 1 < blocks {
            // Where the keys were whose scores are weights now.
            let row = (number + 1) * block;
            barrier_of(&empty[before]).wait_parity(before_phase);
            ask::<E>(
                &full[before],
                keys,
                &mut key_stages,
                batch,
                kv_head,
                row,
                before,
                block,
                head_dim,
            );
        }
        barrier_of(&full[stage]).wait_parity(phase);
        ask_scores::<E>(
            &mut scores,
            of_queries,
            of_keys + stage as u64 * stage_step,
            own_rows,
            block,
            head_dim,
        );
        barrier_of(&full[STAGES + before]).wait_parity(before_phase);
        ask_values::<E>(&mut sums, &weights, of_values + before as u64 * stage_step, blueprint);
        if asks {
            // Where the values were before those that are multiplied.
            let row = number * block;
            if number > 1 {
                let phase = ((number - 2) / STAGES % 2) as u32;
                barrier_of(&empty[STAGES + stage]).wait_parity(phase);
            }
            ask::<E>(
                &full[STAGES + stage],
                values,
                &mut value_stages,
                batch,
                kv_head,
                row,
                stage,
                block,
                head_dim,
            );
        }
        wait_for_all_but(1usize);
        pin::<f32>(&scores);
        if elected {
            barrier_of(&empty[stage]).arrive();
        }
        let base = number * block;
        weigh(&mut scores, &mut rows, base, base + block <= seen_by_all, scale, block);
        wait_for_all_but(0usize);
        pin::<f32>(&sums);
        if elected {
            barrier_of(&empty[STAGES + before]).arrive();
        }
        #[unroll]
        for place in 0..comptime!(head_dim / 2) {
            sums[place] *= rows.kept[comptime!(place / 2 % 2)];
        }
        round::<E>(&mut weights, &scores, block);
    }
    let last = blocks - 1;
    barrier_of(&full[STAGES + last % STAGES]).wait_parity((last / STAGES % 2) as u32);
    let of_last = of_values + (last % STAGES) as u64 * stage_step;
    ask_values::<E>(&mut sums, &weights, of_last, blueprint);
    wait_for_all_but(0usize);
    pin::<f32>(&sums);

    let output_start = batch * output.stride(0) + head * output.stride(1);
    let lse_start = batch * log_sum_exp.stride(0) + head * log_sum_exp.stride(1);
    #[unroll]
    for half in 0..2usize {
        let row = row + half * 8;
        let mut sum = rows.total[half];
        sum += plane_shuffle_xor(sum, 1);
        sum += plane_shuffle_xor(sum, 2);
        if row < new {
            let factor = 1.0 / sum;
            #[unroll]
            for tile in 0..wide {
                let mut pair = Pair::<f32>::empty();
                pair.insert(0usize, sums[tile * 4 + half * 2] * factor);
                pair.insert(1usize, sums[tile * 4 + half * 2 + 1] * factor);
                let place = (output_start + row * output.stride(2)) / 2 + tile * 4 + lane % 4;
                output[place] = Pair::<E>::cast_from(pair);
            }
            if lane.is_multiple_of(4) {
                let place = lse_start + row * log_sum_exp.stride(2);
                log_sum_exp[place] = rows.highest[half] * scale + sum.ln();
            }
        }
    }
}
