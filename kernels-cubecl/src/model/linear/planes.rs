use cubecl::prelude::*;

use super::step::STEP;
use crate::common::tile::{
    mma::{CHUNK, Chunk, Pair, accumulators, definition, two},
    product::Quad,
};

/// Outputs of a plane: 16 bytes of weights for each group of four lanes.
const WIDE: usize = 64;
/// Loads of weights of half a step: as many rows of weights as a lane has numbers of the
/// contraction of a product.
const LOADS: usize = 4;
/// Accumulators of a group of tokens: 16 outputs each.
const TALL: usize = WIDE / 16;

/// Compile-time parameters of [`linear_planes`]: how the planes of a cube share a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LinearPlanesBlueprint {
    /// Planes side by side along the outputs.
    pub(super) across: usize,
    /// Planes that take turns along the contraction.
    pub(super) along: usize,
    /// Groups of eight rows of `x` that a plane has.
    pub(super) groups: usize,
}

impl LinearPlanesBlueprint {
    /// Number of planes of a cube.
    pub(super) fn count(&self) -> usize {
        self.across * self.along
    }

    /// Outputs of a tile.
    pub(super) fn tile(&self) -> usize {
        self.across * WIDE
    }
}

/// Numbers that a lane has loaded and not multiplied yet.
#[derive(CubeType)]
struct Loaded<E: Float> {
    /// 8 outputs of eight rows of weights.
    weights: Array<Chunk<E>>,
    /// Eight numbers of a token, for each group.
    tokens: Array<Chunk<E>>,
}

/// Places that a lane reads from, in chunks.
#[derive(CubeType)]
struct Places {
    /// First of its numbers of `x`, for each group.
    tokens: Array<usize>,
    /// Its outputs in a row of weights.
    column: usize,
    /// Distance from one row of weights to the next.
    pitch: usize,
}

/// Loads half of the weights of a step.
#[cube]
fn load_weights<E: Float>(
    weight: &Tensor<Chunk<E>>,
    places: &Places,
    step: usize,
    loaded: &mut Loaded<E>,
    #[comptime] half: usize,
) {
    let row = step * STEP + UNIT_POS_PLANE as usize % 4 * CHUNK + half * LOADS;
    let mut place = row * places.pitch + places.column;
    #[unroll]
    for index in 0..LOADS {
        loaded.weights[half * LOADS + index] = weight[place];
        place += places.pitch;
    }
}

/// Loads the tokens of a step.
#[cube]
fn load_tokens<E: Float>(
    x: &Tensor<Chunk<E>>,
    places: &Places,
    step: usize,
    loaded: &mut Loaded<E>,
    #[comptime] groups: usize,
) {
    let ahead = step * comptime!(STEP / CHUNK);
    #[unroll]
    for group in 0..groups {
        loaded.tokens[group] = x[places.tokens[group] + ahead];
    }
}

/// See [`super::linear`]: a cube's share of the sums, on tensor cores. Rows of weights and of `x`
/// begin on 16 bytes, there are 32 · n inputs and 8 · n outputs.
///
/// Lane `4 · l + q` has outputs `8 · l` to `8 · l + 7` of a plane's 64, and of the 32 numbers of a
/// step `8 · q` to `8 · q + 7`: what it loads of four rows of weights are its registers of four
/// products, two outputs each.
#[cube(launch)]
pub(super) fn linear_planes<E: Float>(
    x: &Tensor<Chunk<E>>,
    weight: &Tensor<Chunk<E>>,
    parts: &mut Tensor<Quad>,
    share: usize,
    #[comptime] planes: LinearPlanesBlueprint,
    #[define(E)] _type: ElemType,
) {
    let LinearPlanesBlueprint { across, along, groups } = planes;
    let tile = comptime!(across * WIDE);
    // Pairs of sums of a lane.
    let pairs = comptime!(2 * TALL * groups);

    let lane = UNIT_POS_PLANE as usize;
    let (line, quad) = (lane / 4, lane % 4);
    let plane = UNIT_POS as usize / 32;
    let side = plane % across;
    let turn = plane / across;
    let rows = x.shape(0);
    let steps = x.shape(1) / STEP;
    let outputs = weight.shape(1);
    let tiles = outputs.div_ceil(tile);

    let mut stage =
        Shared::<[Pair<f32>]>::new_slice(comptime!(((along - 1) * across * pairs * 32).max(1)));
    let mut place = CUBE_POS_X as usize * share;
    let last = (place + share).min(steps * tiles);
    // Where there are fewer rows or outputs the last are read, for sums that nobody looks at.
    let mut tokens = Array::<usize>::new(groups);
    #[unroll]
    for group in 0..groups {
        tokens[group] = (group * 8 + line).min(rows - 1) * x.stride(0) / CHUNK + quad;
    }
    let mut places = Places { tokens, column: 0usize.runtime(), pitch: weight.stride(0) / CHUNK };

    while place < last {
        let number = place / steps;
        let begin = place - number * steps;
        let end = (begin + last - place).min(steps);
        let column = (number * tile + side * WIDE) / CHUNK + line;
        places.column = column.min(outputs / CHUNK - 1);

        let mut sums = accumulators(comptime!(TALL * groups));
        let mut loaded =
            Loaded::<E> { weights: Array::new(comptime!(2 * LOADS)), tokens: Array::new(groups) };
        let mut step = begin + turn;
        if step < end {
            load_weights::<E>(weight, &places, step, &mut loaded, 0usize);
            load_weights::<E>(weight, &places, step, &mut loaded, 1usize);
            load_tokens::<E>(x, &places, step, &mut loaded, groups);
        }
        while step < end {
            let next = step + along;
            #[unroll]
            for half in 0..2usize {
                let mut a = Sequence::<Array<Pair<E>>>::new();
                #[unroll]
                for product in 0..TALL {
                    let mut fragment = Array::<Pair<E>>::new(4usize);
                    #[unroll]
                    for register in 0..4usize {
                        let from = comptime!(half * LOADS + register / 2 * 2);
                        let output = comptime!(product * 2 + register % 2);
                        let mut pair = Pair::<E>::empty();
                        pair.insert(0usize, loaded.weights[from].extract(output));
                        pair.insert(1usize, loaded.weights[from + 1].extract(output));
                        fragment[register] = pair;
                    }
                    a.push(fragment);
                }
                let mut b = Sequence::<Array<Pair<E>>>::new();
                #[unroll]
                for group in 0..groups {
                    let token = loaded.tokens[group];
                    let mut fragment = Array::<Pair<E>>::new(2usize);
                    #[unroll]
                    for register in 0..2usize {
                        fragment[register] = two::<E>(&token, comptime!(half * 2 + register));
                    }
                    b.push(fragment);
                }
                // What comes next is on its way while this is multiplied.
                if next < end {
                    load_weights::<E>(weight, &places, next, &mut loaded, half);
                    if comptime!(half == 1) {
                        load_tokens::<E>(x, &places, next, &mut loaded, groups);
                    }
                }
                #[unroll]
                for product in 0..TALL {
                    #[unroll]
                    for group in 0..groups {
                        let sum = &mut sums[product * groups + group];
                        definition::<E>().execute_inplace(&a[product], &b[group], sum);
                    }
                }
            }
            step = next;
        }

        // What the planes have found in turns, put together in order by the first.
        if comptime!(along > 1) {
            let of_lane = plane % across * 32 + lane;
            sync_cube();
            if turn > 0 {
                #[unroll]
                for pair in 0..pairs {
                    let to = ((turn - 1) * pairs + pair) * comptime!(across * 32) + of_lane;
                    stage[to] = sums[pair / 2][pair % 2];
                }
            }
            sync_cube();
            if turn == 0 {
                #[unroll]
                for other in 0..comptime!(along - 1) {
                    #[unroll]
                    for pair in 0..pairs {
                        let from = (other * pairs + pair) * comptime!(across * 32) + of_lane;
                        let sum = &mut sums[pair / 2];
                        sum[pair % 2] += stage[from];
                    }
                }
            }
        }
        if turn == 0 {
            let part = CUBE_POS_X as usize + number;
            #[unroll]
            for group in 0..groups {
                #[unroll]
                for token in 0..2usize {
                    let row = group * 8 + quad * 2 + token;
                    if row < rows {
                        let to = (part * rows + row) * tile + side * WIDE + line * CHUNK;
                        #[unroll]
                        for half in 0..2usize {
                            let mut four = Quad::empty();
                            #[unroll]
                            for index in 0..4usize {
                                let output = comptime!(half * 4 + index);
                                let pair = sums[output / 2 * groups + group][output % 2];
                                four.insert(index, pair.extract(token));
                            }
                            parts[to / 4 + half] = four;
                        }
                    }
                }
            }
        }
        place += end - begin;
    }
}
