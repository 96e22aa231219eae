use cubecl::prelude::*;

use super::step::STEP;
use crate::common::tile::mma::{CHUNK, Chunk, Pair, accumulators, definition, two};

/// Outputs of a plane: the rows of one product.
pub(super) const TALL: usize = 16;
/// Chunks of weights that a lane loads at a step: of two outputs.
const LOADS: usize = 2;
/// Sums that rows of the stage have more than outputs, so that lanes write to different banks.
const PADDING: usize = 4;

/// Compile-time parameters of [`linear_k_major`]: how the planes of a cube share a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LinearKMajorBlueprint {
    /// Planes side by side along the outputs.
    pub(super) across: usize,
    /// Planes that take turns along the contraction.
    pub(super) along: usize,
    /// Groups of eight rows of `x`.
    pub(super) groups: usize,
    /// Steps that are on their way at a time.
    pub(super) ahead: usize,
}

impl LinearKMajorBlueprint {
    /// Number of planes of a cube.
    pub(super) fn count(&self) -> usize {
        self.across * self.along
    }

    /// Outputs of a tile.
    pub(super) fn tile(&self) -> usize {
        self.across * TALL
    }
}

/// Numbers that a lane has loaded and not multiplied yet, and the places that it reads from, in
/// chunks.
#[derive(CubeType)]
struct Lane<E: Float> {
    /// Eight numbers of either output, for each step on its way.
    weights: Array<Chunk<E>>,
    /// Eight numbers of a token of each group, for each step on its way.
    tokens: Array<Chunk<E>>,
    weight_places: Array<usize>,
    token_places: Array<usize>,
}

/// Loads what a lane multiplies at a step.
#[cube]
fn load<E: Float>(
    x: &Tensor<Chunk<E>>,
    weight: &Tensor<Chunk<E>>,
    step: usize,
    lane: &mut Lane<E>,
    #[comptime] slot: usize,
    #[comptime] groups: usize,
) {
    let from = step * comptime!(STEP / CHUNK);
    #[unroll]
    for index in 0..LOADS {
        lane.weights[slot * LOADS + index] = weight[lane.weight_places[index] + from];
    }
    #[unroll]
    for group in 0..groups {
        lane.tokens[slot * groups + group] = x[lane.token_places[group] + from];
    }
}

/// Adds the products of a step.
#[cube]
fn multiply<E: Float>(
    lane: &Lane<E>,
    sums: &mut Sequence<Array<Pair<f32>>>,
    #[comptime] slot: usize,
    #[comptime] groups: usize,
) {
    #[unroll]
    for half in 0..2usize {
        let mut a = Array::<Pair<E>>::new(4usize);
        #[unroll]
        for register in 0..4usize {
            let chunk = lane.weights[comptime!(slot * LOADS + register % 2)];
            a[register] = two::<E>(&chunk, comptime!(half * 2 + register / 2));
        }
        #[unroll]
        for group in 0..groups {
            let chunk = lane.tokens[comptime!(slot * groups + group)];
            let mut b = Array::<Pair<E>>::new(2usize);
            b[0] = two::<E>(&chunk, comptime!(half * 2));
            b[1] = two::<E>(&chunk, comptime!(half * 2 + 1));
            definition::<E>().execute_inplace(&a, &b, &mut sums[group]);
        }
    }
}

/// See [`super::linear`]: the sums of up to 32 rows of `x` where the numbers of an output lie one
/// after another, on tensor cores. `weight` is `[outputs, inputs]`; its rows and those of `x` begin
/// on 16 bytes, and there are 32 · n inputs.
///
/// A cube has all sums of its outputs, its planes take turns along the contraction. Lane `4 · l +
/// q` has outputs `l` and `8 + l` of a plane's 16, and of the 32 numbers of a step `8 · q` to
/// `8 · q + 7`: what it loads are its registers of two products.
#[cube(launch)]
pub(super) fn linear_k_major<E: Float>(
    x: &Tensor<Chunk<E>>,
    weight: &Tensor<Chunk<E>>,
    bias: &Tensor<E>,
    output: &mut Tensor<E>,
    #[comptime] planes: LinearKMajorBlueprint,
    #[comptime] biased: bool,
    #[define(E)] _type: ElemType,
) {
    let LinearKMajorBlueprint { across, along, groups, ahead } = planes;
    let tile = comptime!(across * TALL);
    let pitch = comptime!(across * TALL + PADDING);

    let unit = UNIT_POS as usize;
    let plane = unit / 32;
    let (line, quad) = (UNIT_POS_PLANE as usize / 4, UNIT_POS_PLANE as usize % 4);
    let (side, turn) = (plane % across, plane / across);
    let (rows, outputs) = (x.shape(0), weight.shape(0));
    let steps = x.shape(1) / STEP;
    let first_output = CUBE_POS_X as usize * tile;

    // Where there are fewer rows or outputs the last are read, for sums that nobody looks at.
    let mut lane = Lane::<E> {
        weights: Array::new(comptime!(ahead * LOADS)),
        tokens: Array::new(comptime!(ahead * groups)),
        weight_places: Array::new(LOADS),
        token_places: Array::new(groups),
    };
    #[unroll]
    for index in 0..LOADS {
        let own = (first_output + side * TALL + index * 8 + line).min(outputs - 1);
        lane.weight_places[index] = own * weight.stride(0) / CHUNK + quad;
    }
    #[unroll]
    for group in 0..groups {
        lane.token_places[group] = (group * 8 + line).min(rows - 1) * x.stride(0) / CHUNK + quad;
    }

    let mut sums = accumulators(groups);
    #[unroll]
    for slot in 0..ahead {
        let step = turn + slot * along;
        if step < steps {
            load::<E>(x, weight, step, &mut lane, slot, groups);
        }
    }
    let mut first = turn;
    while first < steps {
        #[unroll]
        for slot in 0..ahead {
            let step = first + slot * along;
            if step < steps {
                multiply::<E>(&lane, &mut sums, slot, groups);
                let next = step + ahead * along;
                if next < steps {
                    load::<E>(x, weight, next, &mut lane, slot, groups);
                }
            }
        }
        first += ahead * along;
    }

    // What the planes have found in turns is put together in their order.
    let mut stage = Shared::<[f32]>::new_slice(comptime!(along * groups * 8 * pitch));
    #[unroll]
    for group in 0..groups {
        #[unroll]
        for half in 0..2usize {
            #[unroll]
            for token in 0..2usize {
                let row = (turn * groups + group) * 8 + quad * 2 + token;
                let to = row * pitch + side * TALL + half * 8 + line;
                stage[to] = sums[group][half].extract(token);
            }
        }
    }
    sync_cube();
    let units = comptime!(across * along * 32);
    #[unroll]
    for index in 0..comptime!((groups * 8 * tile).div_ceil(units)) {
        let place = index * units + unit;
        let (row, own) = (place / tile, place % tile);
        let column = first_output + own;
        if row < rows && column < outputs {
            let mut sum = 0.0f32;
            #[unroll]
            for part in 0..along {
                sum += stage[(part * groups * 8 + row) * pitch + own];
            }
            if comptime!(biased) {
                sum += f32::cast_from(bias[column * bias.stride(0)]);
            }
            let to = row * output.stride(0) + column;
            output[to] = E::cast_from(sum);
        }
    }
}
