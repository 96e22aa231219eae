use briquette_ops::Activation;
use cubecl::{
    prelude::{barrier::Barrier, *},
    wgmma::{Accumulator, MatrixDescriptor},
};

use super::gate::gated_pair;
use crate::common::tile::{
    mma::Pair,
    wgmma::{
        ALIGNMENT, DEPTH, GROUP, PANEL, ROWS, along_rows, fence, group_of_unit, wait_for_all_but,
    },
};

/// Numbers of the contraction in a stage.
pub(super) const STEP: usize = PANEL;
/// Tiles of rows of `x` that cubes work on at a time: what they read of it and of the weights stays
/// in the L2 cache.
const BESIDE: usize = 16;

/// Compile-time parameters of [`linear_groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct LinearGroupsBlueprint {
    /// Groups, each with 64 rows of `x` of a tile.
    pub(super) groups: usize,
    /// Outputs of a tile.
    pub(super) outputs: usize,
    /// Stages in shared memory.
    pub(super) stages: usize,
    /// Rows of `x` that are copied of a tile: fewer where there is only one. Others are whatever is
    /// in shared memory, for sums that nobody looks at.
    pub(super) copied: usize,
    /// The function of the gate where outputs are two sides of a gated feed-forward network: a tile
    /// has as many of one as of the other.
    pub(super) gate: Option<Activation>,
}

impl LinearGroupsBlueprint {
    /// Groups, outputs of a tile, and stages.
    pub(super) const fn new([groups, outputs, stages]: [usize; 3]) -> Self {
        Self { groups, outputs, stages, copied: groups * ROWS, gate: None }
    }

    /// The same for so many rows of `x`.
    pub(super) fn of_rows(self, rows: usize) -> Self {
        Self { copied: rows.next_multiple_of(16).min(self.rows()), ..self }
    }

    /// Columns of the result of a tile.
    pub(super) const fn columns(self) -> usize {
        if self.gate.is_some() { self.outputs / 2 } else { self.outputs }
    }

    /// Rows of `x` of a tile.
    pub(super) const fn rows(self) -> usize {
        self.groups * ROWS
    }

    /// Units of a cube: the groups, and a plane that asks for what comes next.
    pub(super) const fn units(self) -> usize {
        self.groups * GROUP + 32
    }

    /// Bytes of a stage.
    pub(super) const fn bytes(self) -> usize {
        (self.rows() + self.outputs) * STEP * 2
    }

    /// Bytes that are copied into a stage.
    const fn copied_bytes(self) -> usize {
        (self.copied + self.outputs) * STEP * 2
    }
}

/// First row of `x` and first column of the result of a tile: tiles below each other first.
#[cube]
fn place_of(
    tile: usize,
    row_tiles: usize,
    output_tiles: usize,
    #[comptime] blueprint: LinearGroupsBlueprint,
) -> (usize, usize) {
    let beside = BESIDE * output_tiles;
    let group = tile / beside * BESIDE;
    let high = (row_tiles - group).min(BESIDE);
    let row = (group + tile % beside % high) * comptime!(blueprint.rows());
    (row, tile % beside / high * comptime!(blueprint.columns()))
}

/// See [`super::super::linear`]: the sums of tiles of rows of `x` and of outputs, both K-major.
/// Cubes have tiles in turn. What is beyond the matrices is zero in shared memory.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn linear_groups<E: Float>(
    x: &TensorMap<E, Tiled>,
    weight: &TensorMap<E, Tiled>,
    bias: &Tensor<E>,
    output: &mut Tensor<Pair<E>>,
    inputs: usize,
    #[comptime] blueprint: LinearGroupsBlueprint,
    #[comptime] biased: bool,
    #[define(E)] _type: ElemType,
) {
    let LinearGroupsBlueprint { groups, outputs: wide, stages, copied, gate } = blueprint;
    let columns_of_tile = comptime!(blueprint.columns());
    let tall = comptime!(blueprint.rows());
    let (x_layout, weight_layout) = comptime!((along_rows(tall, STEP), along_rows(wide, STEP)));
    let (x_size, weight_size) = comptime!((tall * STEP, wide * STEP));
    let (rows, columns) = (output.shape(0), output.shape(1));
    let (row_tiles, output_tiles) = (rows.div_ceil(tall), columns.div_ceil(columns_of_tile));
    let tiles = row_tiles * output_tiles;
    // Steps beyond the last find zeros.
    let rounds = inputs.div_ceil(comptime!(stages * STEP));
    let unit = UNIT_POS as usize;

    let mut x_stages = Shared::<[E]>::new_aligned_slice(comptime!(stages * tall * STEP), ALIGNMENT);
    let mut weight_stages =
        Shared::<[E]>::new_aligned_slice(comptime!(stages * wide * STEP), ALIGNMENT);
    // Of each stage: whether it has come, and whether it has been read.
    let mut full = Sequence::<Shared<Barrier>>::new();
    let mut empty = Sequence::<Shared<Barrier>>::new();
    #[unroll]
    for _ in 0..stages {
        full.push(Barrier::shared_uninit());
        empty.push(Barrier::shared_uninit());
    }
    if unit == 0 {
        #[unroll]
        for stage in 0..stages {
            full[stage].init_manual(1);
            empty[stage].init_manual(comptime!(groups as u32));
        }
    }
    sync_async_proxy_shared();
    sync_cube();

    let mut phase = 0u32;
    let mut tile = CUBE_POS_X as usize;
    if unit >= comptime!(groups * GROUP) {
        if unit == comptime!(groups * GROUP) {
            while tile < tiles {
                let (row, column) = place_of(tile, row_tiles, output_tiles, blueprint);
                for round in 0..rounds {
                    #[unroll]
                    for stage in 0..stages {
                        let step = (round * stages + stage) * STEP;
                        empty[stage].wait_parity(phase ^ 1);
                        full[stage]
                            .arrive_and_expect_tx(1, comptime!(blueprint.copied_bytes() as u32));
                        full[stage].tma_load_2d(
                            x,
                            &mut x_stages[stage * x_size..stage * x_size + copied * STEP],
                            row as i32,
                            step as i32,
                        );
                        // Outputs of the gate, and behind them those of the other side.
                        #[unroll]
                        for side in 0..comptime!(wide / columns_of_tile) {
                            let size = comptime!(columns_of_tile * STEP);
                            let from = comptime!(stage * weight_size + side * size);
                            full[stage].tma_load_2d(
                                weight,
                                &mut weight_stages[from..from + size],
                                (side * columns + column) as i32,
                                step as i32,
                            );
                        }
                    }
                    phase ^= 1;
                }
                tile += CUBE_COUNT;
            }
        }
    } else {
        let group = group_of_unit();
        let elected = unit.is_multiple_of(GROUP);
        while tile < tiles {
            let (row, first_column) = place_of(tile, row_tiles, output_tiles, blueprint);
            let first_row = row + group * ROWS;

            let mut sums = Accumulator::<f32>::new(wide).start();
            for round in 0..rounds {
                #[unroll]
                for stage in 0..stages {
                    full[stage].wait_parity(phase);
                    let a = MatrixDescriptor::<E>::new(
                        &x_stages[stage * x_size..(stage + 1) * x_size],
                        x_layout,
                    );
                    let b = MatrixDescriptor::<E>::new(
                        &weight_stages[stage * weight_size..(stage + 1) * weight_size],
                        weight_layout,
                    );
                    fence();
                    #[unroll]
                    for depth in 0..comptime!(STEP / DEPTH) {
                        sums.execute(
                            &a.at(group * ROWS, depth * DEPTH),
                            &b.at(0usize, depth * DEPTH),
                        );
                    }
                    let _ = sums.commit();
                    // The stage before has been read.
                    wait_for_all_but(1usize);
                    if comptime!(stage > 0) {
                        if elected {
                            empty[comptime!(stage - 1)].arrive();
                        }
                    } else if elected && round > 0 {
                        empty[comptime!(stages - 1)].arrive();
                    }
                }
                phase ^= 1;
            }
            let sums = sums.wait();
            if elected {
                empty[comptime!(stages - 1)].arrive();
            }

            #[unroll]
            for nth in 0..comptime!(columns_of_tile / 4) {
                let (row, column) = sums.position_of_nth((unit % GROUP) as u32, nth as u32 * 2);
                let row = first_row + row as usize;
                let own = first_column + column as usize;
                if row < rows && own < columns {
                    let mut both = Sequence::<Pair<f32>>::new();
                    #[unroll]
                    for side in 0..comptime!(wide / columns_of_tile) {
                        let mut pair = Pair::<f32>::empty();
                        #[unroll]
                        for next in 0..2usize {
                            let place = comptime!(side * columns_of_tile / 2 + nth * 2 + next);
                            let mut sum = sums.get(place);
                            if comptime!(biased) {
                                let of = side * columns + own + next;
                                sum += f32::cast_from(bias[of * bias.stride(0)]);
                            }
                            pair.insert(next, sum);
                        }
                        both.push(pair);
                    }
                    let found = match comptime!(gate) {
                        Some(activation) => gated_pair::<E>(both[0], both[1], activation),
                        None => Pair::<E>::cast_from(both[0]),
                    };
                    let to = (row * output.stride(0) + own) / 2;
                    output[to] = found;
                }
            }
            tile += CUBE_COUNT;
        }
    }
}
