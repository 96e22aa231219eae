use cubecl::{
    prelude::{barrier::Barrier, *},
    wgmma::{Accumulator, Fragment, MatrixDescriptor},
};

use crate::common::{
    masked::MASKED,
    tile::{
        mma::Pair,
        wgmma::{ALIGNMENT, DEPTH, GROUP, PANEL, ROWS, along_columns, along_rows, group_of_unit},
    },
};

/// Compile-time parameters of [`attention_groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct AttentionGroupsBlueprint {
    /// A multiple of 64 up to 128.
    pub(super) head_dim: usize,
    /// Groups, each with 64 queries.
    pub(super) groups: usize,
    /// Keys of a block.
    pub(super) keys: usize,
    /// Blocks of keys, and of values, in shared memory.
    pub(super) stages: usize,
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

    /// Bytes of a block of keys, or of values.
    const fn bytes(self) -> usize {
        self.keys * self.head_dim * 2
    }
}

/// Asks for the panels of a block of rows.
#[cube]
fn ask<E: Float>(
    barrier: &Shared<Barrier>,
    rows: &TensorMap<E, Tiled>,
    stages: &mut Shared<[E]>,
    batch: usize,
    head: usize,
    row: usize,
    #[comptime] stage: usize,
    #[comptime] count: usize,
    #[comptime] head_dim: usize,
) {
    #[unroll]
    for panel in 0..comptime!(head_dim / PANEL) {
        let from = comptime!((stage * head_dim + panel * PANEL) * count);
        let to = comptime!((stage * head_dim + (panel + 1) * PANEL) * count);
        barrier.tma_load_4d(
            rows,
            &mut stages[from..to],
            batch as i32,
            head as i32,
            row as i32,
            comptime!((panel * PANEL) as i32),
        );
    }
}

/// See [`super::attention`], causally.
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
    let AttentionGroupsBlueprint { head_dim, groups, keys: block, stages } = blueprint;
    let own_rows = comptime!(blueprint.queries());
    let query_layout = comptime!(along_rows(own_rows, head_dim));
    let key_layout = comptime!(along_rows(block, head_dim));
    let value_layout = comptime!(along_columns(block, head_dim));
    let size = comptime!(block * head_dim);

    let unit = UNIT_POS as usize;
    let new = output.shape(2);
    let old = entries - new;
    let head = CUBE_POS_X as usize;
    let batch = CUBE_POS_Z as usize;
    let kv_head = head / of_kv_head;
    // The last queries of all heads see most: they go first.
    let first = (new.div_ceil(own_rows) - 1 - CUBE_POS_Y as usize) * own_rows;
    let seen = (first + own_rows + old).min(entries);
    let blocks = seen.div_ceil(block);
    let rounds = blocks.div_ceil(stages);

    let mut query_stage =
        Shared::<[E]>::new_aligned_slice(comptime!(own_rows * head_dim), ALIGNMENT);
    let mut key_stages =
        Shared::<[E]>::new_aligned_slice(comptime!(stages * block * head_dim), ALIGNMENT);
    let mut value_stages =
        Shared::<[E]>::new_aligned_slice(comptime!(stages * block * head_dim), ALIGNMENT);
    // Of queries, and of each stage of keys and of values: whether it has come; of a stage whether
    // it has been read.
    let query_full = Barrier::shared_uninit();
    let mut key_full = Sequence::<Shared<Barrier>>::new();
    let mut key_empty = Sequence::<Shared<Barrier>>::new();
    let mut value_full = Sequence::<Shared<Barrier>>::new();
    let mut value_empty = Sequence::<Shared<Barrier>>::new();
    #[unroll]
    for _ in 0..stages {
        key_full.push(Barrier::shared_uninit());
        key_empty.push(Barrier::shared_uninit());
        value_full.push(Barrier::shared_uninit());
        value_empty.push(Barrier::shared_uninit());
    }
    if unit == 0 {
        query_full.init_manual(1);
        #[unroll]
        for stage in 0..stages {
            key_full[stage].init_manual(1);
            key_empty[stage].init_manual(comptime!(groups as u32));
            value_full[stage].init_manual(1);
            value_empty[stage].init_manual(comptime!(groups as u32));
        }
    }
    sync_async_proxy_shared();
    sync_cube();

    let asks = unit == 0;
    if asks {
        query_full.arrive_and_expect_tx(1, comptime!((own_rows * head_dim * 2) as u32));
        ask::<E>(
            &query_full,
            queries,
            &mut query_stage,
            batch,
            head,
            first,
            0usize,
            own_rows,
            head_dim,
        );
        #[unroll]
        for stage in 0..comptime!(stages - 1) {
            if stage < blocks {
                let row = stage * block;
                let bytes = comptime!(blueprint.bytes() as u32);
                key_full[stage].arrive_and_expect_tx(1, bytes);
                ask::<E>(
                    &key_full[stage],
                    keys,
                    &mut key_stages,
                    batch,
                    kv_head,
                    row,
                    stage,
                    block,
                    head_dim,
                );
                value_full[stage].arrive_and_expect_tx(1, bytes);
                ask::<E>(
                    &value_full[stage],
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
        }
    }

    let mut phase = 0u32;
    let group = group_of_unit();
    let elected = unit.is_multiple_of(GROUP);
    let lane = UNIT_POS_PLANE as usize;
    // A unit has two rows, eight apart.
    let row = first + group * ROWS + unit % GROUP / 32 * 16 + lane / 4;
    let wide = comptime!(head_dim / 8);
    let long = comptime!(block / 8);

    let mut highest = Array::<f32>::new(2usize);
    let mut total = Array::<f32>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        highest[half] = MASKED;
        total[half] = 0.0;
    }
    let mut sums = Array::<f32>::new(comptime!(head_dim / 2));
    #[unroll]
    for place in 0..comptime!(head_dim / 2) {
        sums[place] = 0.0;
    }

    query_full.wait_parity(0);
    let of_queries = MatrixDescriptor::<E>::new(&query_stage[0..own_rows * head_dim], query_layout);
    for round in 0..rounds {
        #[unroll]
        for stage in 0..stages {
            let number = round * stages + stage;
            if number < blocks {
                let base = number * block;
                // Into the stage that the block before has been read from.
                let next = number + comptime!(stages - 1);
                if asks && next < blocks {
                    let (row, bytes) = (next * block, comptime!(blueprint.bytes() as u32));
                    let place = comptime!((stage + stages - 1) % stages);
                    if number > 0 {
                        let before = if comptime!(stage > 0) { phase } else { phase ^ 1 };
                        key_empty[place].wait_parity(before);
                        value_empty[place].wait_parity(before);
                    }
                    key_full[place].arrive_and_expect_tx(1, bytes);
                    ask::<E>(
                        &key_full[place],
                        keys,
                        &mut key_stages,
                        batch,
                        kv_head,
                        row,
                        place,
                        block,
                        head_dim,
                    );
                    value_full[place].arrive_and_expect_tx(1, bytes);
                    ask::<E>(
                        &value_full[place],
                        values,
                        &mut value_stages,
                        batch,
                        kv_head,
                        row,
                        place,
                        block,
                        head_dim,
                    );
                }
                key_full[stage].wait_parity(phase);
                let of_keys = MatrixDescriptor::<E>::new(
                    &key_stages[stage * size..(stage + 1) * size],
                    key_layout,
                );
                let mut scores = Accumulator::<f32>::new(block).start();
                #[unroll]
                for depth in 0..comptime!(head_dim / DEPTH) {
                    scores.execute(
                        &of_queries.at(group * ROWS, depth * DEPTH),
                        &of_keys.at(0usize, depth * DEPTH),
                    );
                }
                let scores = scores.wait();
                if elected {
                    key_empty[stage].arrive();
                }

                let mut weights = Array::<f32>::new(comptime!(block / 2));
                #[unroll]
                for place in 0..comptime!(block / 2) {
                    weights[place] = scores.get(place);
                }
                // What the group's first query does not see.
                if base + block > first + group * ROWS + old + 1 {
                    #[unroll]
                    for place in 0..comptime!(block / 2) {
                        let half = comptime!(place / 2 % 2);
                        let column = base + lane % 4 * 2 + comptime!(place / 4 * 8 + place % 2);
                        let hidden = column > row + half * 8 + old;
                        weights[place] = select(hidden, MASKED, weights[place]);
                    }
                }

                #[unroll]
                for half in 0..2usize {
                    let mut most = weights[half * 2];
                    #[unroll]
                    for tile in 0..long {
                        most = most.max(weights[tile * 4 + half * 2]);
                        most = most.max(weights[tile * 4 + half * 2 + 1]);
                    }
                    most = most.max(plane_shuffle_xor(most, 1));
                    most = most.max(plane_shuffle_xor(most, 2));
                    most = most.max(highest[half]);
                    let kept = ((highest[half] - most) * scale).exp();
                    highest[half] = most;
                    let offset = select(most > MASKED, most * scale, 0.0);
                    let mut sum = total[half] * kept;
                    #[unroll]
                    for tile in 0..long {
                        #[unroll]
                        for side in 0..2usize {
                            let place = comptime!(tile * 4 + half * 2 + side);
                            let weight = fma(weights[place], scale, -offset).exp();
                            weights[place] = weight;
                            sum += weight;
                        }
                    }
                    total[half] = sum;
                    #[unroll]
                    for tile in 0..wide {
                        sums[tile * 4 + half * 2] *= kept;
                        sums[tile * 4 + half * 2 + 1] *= kept;
                    }
                }

                value_full[stage].wait_parity(phase);
                let of_values = MatrixDescriptor::<E>::new(
                    &value_stages[stage * size..(stage + 1) * size],
                    value_layout,
                );
                let mut found = Accumulator::<f32>::new(head_dim).start();
                #[unroll]
                for depth in 0..comptime!(block / DEPTH) {
                    let mut fragment = Fragment::<E>::new();
                    #[unroll]
                    for nth in 0..8usize {
                        // Two tiles of eight columns: a fragment's runs of two are in the same
                        // order as a sum's.
                        fragment.set(nth, E::cast_from(weights[depth * 8 + nth]));
                    }
                    found.execute_registers(&fragment, &of_values.at(0usize, depth * DEPTH));
                }
                let found = found.wait();
                if elected {
                    value_empty[stage].arrive();
                }
                #[unroll]
                for place in 0..comptime!(head_dim / 2) {
                    sums[place] += found.get(place);
                }
            }
        }
        phase ^= 1;
    }

    let output_start = batch * output.stride(0) + head * output.stride(1);
    let lse_start = batch * log_sum_exp.stride(0) + head * log_sum_exp.stride(1);
    #[unroll]
    for half in 0..2usize {
        let row = row + half * 8;
        let mut sum = total[half];
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
            if lane % 4 == 0 {
                let place = lse_start + row * log_sum_exp.stride(2);
                log_sum_exp[place] = highest[half] * scale + sum.ln();
            }
        }
    }
}
