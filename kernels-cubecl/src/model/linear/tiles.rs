use cubecl::prelude::*;

use crate::common::tile::mma::{
    CHUNK, Chunk, Pair, accumulators, columns_of_b, multiply, pitch, rows_of_a, rows_of_b,
};

/// Tiles of rows of `x` that cubes work on at a time: what they read of it and of the weights stays
/// in the L2 cache.
pub(super) const BESIDE: usize = 16;

/// Compile-time parameters of [`linear_tiles`]: how the planes of a cube share a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LinearTilesBlueprint {
    /// Planes along the rows of `x`.
    pub(super) down: usize,
    /// Planes along the outputs.
    pub(super) across: usize,
    /// Rows of `x` of a plane, in tiles of 16.
    pub(super) tall: usize,
    /// Outputs of a plane, in tiles of 16.
    pub(super) wide: usize,
    /// Numbers of the contraction in shared memory at a time.
    pub(super) step: usize,
    /// Whether the numbers of an output lie one after another: `weight` is `[outputs, inputs]`, and
    /// so is its stage.
    pub(super) k_major: bool,
}

impl LinearTilesBlueprint {
    /// Units of a cube.
    pub(super) fn units(&self) -> usize {
        self.down * self.across * 32
    }

    /// Rows of `x` of a tile.
    pub(super) fn rows(&self) -> usize {
        self.down * self.tall * 16
    }

    /// Outputs of a tile.
    pub(super) fn outputs(&self) -> usize {
        self.across * self.wide * 16
    }

    /// Rows and columns of the stage of weights.
    const fn weight_stage(&self) -> (usize, usize) {
        let outputs = self.across * self.wide * 16;
        if self.k_major { (outputs, self.step) } else { (self.step, outputs) }
    }
}

/// Adds the products of what a stage holds for a plane: its rows of `x` from `row` on, and its
/// outputs from `output` on of weights whose stage begins at `weight_row`.
#[cube]
fn multiply_stage<E: Float>(
    x_stage: &Shared<[Chunk<E>]>,
    weight_stage: &Shared<[Chunk<E>]>,
    row: usize,
    weight_row: usize,
    output: usize,
    sums: &mut Sequence<Array<Pair<f32>>>,
    #[comptime] tiles: LinearTilesBlueprint,
) {
    let LinearTilesBlueprint { tall, wide, step, k_major, .. } = tiles;
    let weight_pitch = comptime!(pitch(tiles.weight_stage().1));
    #[unroll]
    for depth in 0..comptime!(step / 16) {
        let mut a = Sequence::<Array<Pair<E>>>::new();
        #[unroll]
        for tile in 0..tall {
            a.push(rows_of_a::<E>(x_stage, row + tile * 16, depth * 2, comptime!(pitch(step))));
        }
        #[unroll]
        for pair in 0..wide {
            let own = output + pair * 16;
            let b = if comptime!(k_major) {
                rows_of_b::<E>(weight_stage, weight_row + own, depth * 2, weight_pitch)
            } else {
                let from = weight_row + depth * 16;
                columns_of_b::<E>(weight_stage, from, own / CHUNK, weight_pitch)
            };
            #[unroll]
            for tile in 0..tall {
                let to = comptime!((tile * wide + pair) * 2);
                multiply::<E>(&a[tile], &b, 0usize, &mut sums[to]);
                multiply::<E>(&a[tile], &b, 1usize, &mut sums[to + 1]);
            }
        }
    }
}

/// See [`super::linear`]: a cube's share of the sums where there are many rows, on tensor cores,
/// from shared memory. Rows of weights and of `x` begin on 16 bytes, there are a multiple of `step`
/// inputs and 8 · n outputs. What a cube has summed from end to end is written to `output`, other
/// sums to `parts`.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn linear_tiles<E: Float>(
    x: &Tensor<Chunk<E>>,
    weight: &Tensor<Chunk<E>>,
    bias: &Tensor<E>,
    output: &mut Tensor<Pair<E>>,
    parts: &mut Tensor<Pair<f32>>,
    share: usize,
    #[comptime] tiles: LinearTilesBlueprint,
    #[comptime] biased: bool,
    #[define(E)] _type: ElemType,
) {
    let LinearTilesBlueprint { down, across, tall, wide, step, k_major } = tiles;
    let units = comptime!(down * across * 32);
    let (tile_rows, tile_outputs) = comptime!((down * tall * 16, across * wide * 16));
    let (weight_rows, weight_columns) = comptime!(tiles.weight_stage());
    let (x_pitch, weight_pitch) = comptime!((pitch(step), pitch(weight_columns)));
    // Chunks of a row of either tile, and how many a unit loads of it.
    let (x_chunks, weight_chunks) = comptime!((step / CHUNK, weight_columns / CHUNK));
    let x_loads = comptime!(down * tall * 16 * (step / CHUNK) / (down * across * 32));
    let weight_loads = comptime!(step * (across * wide * 16 / CHUNK) / (down * across * 32));

    let (rows, outputs) = (x.shape(0), output.shape(1));
    let steps = x.shape(1) / step;
    let (row_tiles, output_tiles) = (rows.div_ceil(tile_rows), outputs.div_ceil(tile_outputs));

    let unit = UNIT_POS as usize;
    let (plane, lane) = (unit / 32, UNIT_POS_PLANE as usize);
    let (plane_row, plane_output) = (plane / across * (tall * 16), plane % across * (wide * 16));

    // Two stages: one that is multiplied, one on its way.
    let x_stage_size = comptime!(down * tall * 16 * pitch(step));
    let weight_stage_size = comptime!(weight_rows * pitch(weight_columns));
    let mut x_stage = Shared::<[Chunk<E>]>::new_aligned_slice(comptime!(2 * x_stage_size), 16usize);
    let mut weight_stage =
        Shared::<[Chunk<E>]>::new_aligned_slice(comptime!(2 * weight_stage_size), 16usize);

    let mut place = CUBE_POS_X as usize * share;
    let last = (place + share).min(steps * row_tiles * output_tiles);
    while place < last {
        let number = place / steps;
        let begin = place - number * steps;
        let end = (begin + last - place).min(steps);
        // Tiles below each other first.
        let of_group = BESIDE * output_tiles;
        let group = number / of_group * BESIDE;
        let high = (row_tiles - group).min(BESIDE);
        let first_row = (group + number % of_group % high) * tile_rows;
        let first_output = number % of_group / high * tile_outputs;

        // Where there are fewer rows or outputs the last are read, for sums that nobody looks at.
        let mut x_places = Array::<usize>::new(x_loads);
        #[unroll]
        for load in 0..x_loads {
            let index = unit + load * units;
            let row = (first_row + index / x_chunks).min(rows - 1);
            x_places[load] = row * x.stride(0) / CHUNK + index % x_chunks;
        }
        let mut weight_places = Array::<usize>::new(weight_loads);
        #[unroll]
        for load in 0..weight_loads {
            let index = unit + load * units;
            let (row, chunk) = (index / weight_chunks, index % weight_chunks);
            weight_places[load] = if comptime!(k_major) {
                (first_output + row).min(outputs - 1) * weight.stride(0) / CHUNK + chunk
            } else {
                let column = (first_output / CHUNK + chunk).min(outputs / CHUNK - 1);
                row * weight.stride(0) / CHUNK + column
            };
        }
        let weight_step = if comptime!(k_major) {
            weight_chunks.runtime()
        } else {
            step * weight.stride(0) / CHUNK
        };

        let mut sums = accumulators(comptime!(tall * wide * 2));
        let mut x_ahead = Array::<Chunk<E>>::new(x_loads);
        let mut weight_ahead = Array::<Chunk<E>>::new(weight_loads);
        // Nobody reads a stage of the tile before any more.
        sync_cube();
        #[unroll]
        for load in 0..x_loads {
            let index = unit + load * units;
            x_stage[index / x_chunks * x_pitch + index % x_chunks] =
                x[x_places[load] + begin * x_chunks];
        }
        #[unroll]
        for load in 0..weight_loads {
            let index = unit + load * units;
            weight_stage[index / weight_chunks * weight_pitch + index % weight_chunks] =
                weight[weight_places[load] + begin * weight_step];
        }
        sync_cube();

        for at in begin..end {
            let stage = (at - begin) % 2;
            let more = at + 1 < end;
            // What comes next is on its way while this is multiplied.
            if more {
                #[unroll]
                for load in 0..x_loads {
                    x_ahead[load] = x[x_places[load] + (at + 1) * x_chunks];
                }
                #[unroll]
                for load in 0..weight_loads {
                    weight_ahead[load] = weight[weight_places[load] + (at + 1) * weight_step];
                }
            }
            multiply_stage::<E>(
                &x_stage,
                &weight_stage,
                stage * (x_stage_size / x_pitch) + plane_row,
                stage * weight_rows,
                plane_output,
                &mut sums,
                tiles,
            );
            if more {
                let other = 1 - stage;
                #[unroll]
                for load in 0..x_loads {
                    let index = unit + load * units;
                    let to = index / x_chunks * x_pitch + index % x_chunks;
                    x_stage[other * x_stage_size + to] = x_ahead[load];
                }
                #[unroll]
                for load in 0..weight_loads {
                    let index = unit + load * units;
                    let to = index / weight_chunks * weight_pitch + index % weight_chunks;
                    weight_stage[other * weight_stage_size + to] = weight_ahead[load];
                }
            }
            sync_cube();
        }

        let whole = begin == 0 && end == steps;
        let part = (CUBE_POS_X as usize + number) * comptime!(down * tall * across * wide * 256);
        #[unroll]
        for tile in 0..comptime!(tall * 2) {
            let row = plane_row + tile * 8 + lane / 4;
            if first_row + row < rows {
                #[unroll]
                for column in 0..comptime!(wide * 2) {
                    let own = plane_output + column * 8 + lane % 4 * 2;
                    let mut pair = sums[tile / 2 * (wide * 2) + column][tile % 2];
                    if whole {
                        if first_output + own < outputs {
                            if comptime!(biased) {
                                #[unroll]
                                for side in 0..2usize {
                                    let at = (first_output + own + side) * bias.stride(0);
                                    let sum = pair.extract(side) + f32::cast_from(bias[at]);
                                    pair.insert(side, sum);
                                }
                            }
                            let to = (first_row + row) * output.stride(0) + first_output + own;
                            output[to / 2] = Pair::cast_from(pair);
                        }
                    } else {
                        parts[(part + row * tile_outputs + own) / 2] = pair;
                    }
                }
            }
        }
        place += end - begin;
    }
}
