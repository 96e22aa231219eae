//! The search on tensor cores.

// A kernel takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::portable::NONE;
use crate::common::{
    masked::LOWEST,
    tile::mma::{CHUNK, Chunk, Pair, accumulators, multiply, pitch, rows_of_a, rows_of_b},
};

/// Rows of `to` in shared memory at a time; there are as many again on their way.
pub(super) const BLOCK: usize = 32;
/// Units of a cube of [`lengths`].
pub(super) const UNITS: usize = 256;
/// Units that share a row whose length they measure: at most one a chunk.
const OF_ROW: usize = 16;
/// Rows that a unit has a part of.
const OWN: usize = 4;
/// Rows of one cube of [`lengths`].
pub(super) const MEASURED: usize = UNITS / OF_ROW * OWN;

/// How a launch cuts its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cut {
    /// Of the rows of each pair, a multiple of 16.
    pub(super) channels: [usize; 2],
    pub(super) pairs: usize,
    /// Planes of a cube.
    pub(super) planes: usize,
    /// Rows of `from` of a plane, in tiles of 16.
    pub(super) tall: usize,
    /// Whether a cube has all of `to`, so that what it finds is what is returned.
    pub(super) whole: bool,
}

/// One over the length of each row of `from` and `to` of each pair,
/// `[2 · pairs, batch · heads, rows]`; finite for a zero vector.
#[cube(launch)]
pub(super) fn lengths<K: Float, V: Float>(
    from: &Tensor<Chunk<K>>,
    to: &Tensor<Chunk<K>>,
    more_from: &Tensor<Chunk<V>>,
    more_to: &Tensor<Chunk<V>>,
    inverse: &mut Tensor<f32>,
    #[comptime] channels: [usize; 2],
    #[comptime] pairs: usize,
    #[define(K, V)] _types: [ElemType; 2],
) {
    if CUBE_POS_Z == 0 {
        measure::<K>(from, inverse, comptime!(channels[0]));
    } else if CUBE_POS_Z == 1 {
        measure::<K>(to, inverse, comptime!(channels[0]));
    } else if comptime!(pairs == 2) {
        if CUBE_POS_Z == 2 {
            measure::<V>(more_from, inverse, comptime!(channels[1]));
        } else {
            measure::<V>(more_to, inverse, comptime!(channels[1]));
        }
    }
}

#[cube]
fn measure<X: Float>(x: &Tensor<Chunk<X>>, inverse: &mut Tensor<f32>, #[comptime] channels: usize) {
    let unit = UNIT_POS as usize;
    let list = CUBE_POS_Y as usize;
    let (heads, rows) = (x.shape(1), x.shape(2));
    let first = CUBE_POS_X as usize * MEASURED + unit / OF_ROW;
    let start = list / heads * x.stride(0) + list % heads * x.stride(1);
    let place = CUBE_POS_Z as usize * inverse.stride(0) + list * inverse.stride(1);
    let chunk = unit % OF_ROW;
    #[unroll]
    for own in 0..OWN {
        let row = first + own * comptime!(UNITS / OF_ROW);
        let mut sum = f32::new(0.0);
        if row < rows && chunk < comptime!(channels / CHUNK) {
            let numbers = x[(start + row * x.stride(2)) / CHUNK + chunk];
            #[unroll]
            for index in 0..CHUNK {
                let number = f32::cast_from(numbers.extract(index));
                sum = fma(number, number, sum);
            }
        }
        sum += plane_shuffle_xor(sum, 8);
        sum += plane_shuffle_xor(sum, 4);
        sum += plane_shuffle_xor(sum, 2);
        sum += plane_shuffle_xor(sum, 1);
        if row < rows && chunk == 0 {
            inverse[place + row] = 1.0 / sum.sqrt().max(f32::MIN_POSITIVE);
        }
    }
}

/// The chunks of a unit of the rows from `base` on. Behind the last stand copies of it.
#[cube]
fn fetch<X: Float>(
    x: &Tensor<Chunk<X>>,
    list: usize,
    base: usize,
    ahead: &mut Array<Chunk<X>>,
    #[comptime] channels: usize,
    #[comptime] units: usize,
) {
    let chunks = comptime!(channels / CHUNK);
    let start = list / x.shape(1) * x.stride(0) + list % x.shape(1) * x.stride(1);
    #[unroll]
    for pass in 0..comptime!((BLOCK * chunks).div_ceil(units)) {
        let index = UNIT_POS as usize + pass * units;
        let row = (base + index / chunks).min(x.shape(2) - 1);
        ahead[pass] = x[(start + row * x.stride(2)) / CHUNK + index % chunks];
    }
}

#[cube]
fn store<X: Float>(
    stages: &mut Shared<[Chunk<X>]>,
    stage: usize,
    ahead: &Array<Chunk<X>>,
    #[comptime] channels: usize,
    #[comptime] units: usize,
) {
    let chunks = comptime!(channels / CHUNK);
    #[unroll]
    for pass in 0..comptime!((BLOCK * chunks).div_ceil(units)) {
        let index = UNIT_POS as usize + pass * units;
        if index < comptime!(BLOCK * chunks) {
            let place = (stage + index / chunks) * comptime!(pitch(channels)) + index % chunks;
            stages[place] = ahead[pass];
        }
    }
}

/// The rows of `from` of a plane, which stay in registers. They pass through the stages.
#[cube]
fn take_rows<X: Float>(
    x: &Tensor<Chunk<X>>,
    list: usize,
    first: usize,
    stages: &mut Shared<[Chunk<X>]>,
    a: &mut Sequence<Array<Pair<X>>>,
    #[comptime] channels: usize,
    #[comptime] cut: Cut,
) {
    let chunks = comptime!(channels / CHUNK);
    let pitch = comptime!(pitch(channels));
    let rows = comptime!(cut.planes * cut.tall * 16);
    let start = list / x.shape(1) * x.stride(0) + list % x.shape(1) * x.stride(1);
    let mut index = UNIT_POS as usize;
    while index < comptime!(rows * chunks) {
        let row = (first + index / chunks).min(x.shape(2) - 1);
        stages[index / chunks * pitch + index % chunks] =
            x[(start + row * x.stride(2)) / CHUNK + index % chunks];
        index += comptime!(cut.planes * 32);
    }
    sync_cube();
    let plane = UNIT_POS as usize / 32;
    #[unroll]
    for step in 0..comptime!(channels / 16) {
        #[unroll]
        for tile in 0..comptime!(cut.tall) {
            let row = (plane * comptime!(cut.tall) + tile) * 16;
            a.push(rows_of_a::<X>(&*stages, row, step * 2, pitch));
        }
    }
    sync_cube();
}

/// The products of the rows of a plane with those of a stage.
#[cube]
fn products<X: Float>(
    a: &Sequence<Array<Pair<X>>>,
    stages: &Shared<[Chunk<X>]>,
    stage: usize,
    #[comptime] channels: usize,
    #[comptime] tall: usize,
) -> Sequence<Array<Pair<f32>>> {
    let pitch = comptime!(pitch(channels));
    let long = comptime!(BLOCK / 8);
    let mut sums = accumulators(comptime!(tall * long));
    #[unroll]
    for step in 0..comptime!(channels / 16) {
        #[unroll]
        for pair in 0..comptime!(BLOCK / 16) {
            let b = rows_of_b::<X>(stages, stage + pair * 16, step * 2, pitch);
            #[unroll]
            for tile in 0..tall {
                let (own, place) = comptime!((step * tall + tile, tile * long + pair * 2));
                multiply::<X>(&a[own], &b, 0usize, &mut sums[place]);
                multiply::<X>(&a[own], &b, 1usize, &mut sums[place + 1]);
            }
        }
    }
    sums
}

/// The best of a part of `to` for each row of `from`: `similarity` and `index` are
/// `[batch, heads, from]` if the part is all of it, else `[splits, batch · heads, from]`. Rows are
/// contiguous and 16-byte aligned.
#[cube(launch)]
pub(super) fn search_planes<K: Float, V: Float, I: Int, J: Int>(
    from: &Tensor<Chunk<K>>,
    to: &Tensor<Chunk<K>>,
    more_from: &Tensor<Chunk<V>>,
    more_to: &Tensor<Chunk<V>>,
    inverse: &Tensor<f32>,
    padding: &Tensor<I>,
    similarity: &mut Tensor<f32>,
    index: &mut Tensor<J>,
    share: usize,
    #[comptime] cut: Cut,
    #[define(K, V, I, J)] _types: [ElemType; 4],
) {
    let Cut { channels: [channels, more_channels], pairs, planes, tall, whole } = cut;
    let units = comptime!(planes * 32);
    let rows = comptime!(planes * tall * 16);
    let staged = comptime!(if rows > 2 * BLOCK { rows } else { 2 * BLOCK });
    let long = comptime!(BLOCK / 8);
    // A lane has two rows of each tile.
    let halves = comptime!(2 * tall);

    let unit = UNIT_POS as usize;
    let lane = UNIT_POS_PLANE as usize;
    let quad = lane % 4;
    let first = CUBE_POS_X as usize * rows;
    let list = CUBE_POS_Y as usize;
    let split = CUBE_POS_Z as usize;
    let columns = to.shape(2);
    let missing = usize::cast_from(padding[list * padding.stride(0)]);
    let inverse_start = list * inverse.stride(1);
    let to_inverse = inverse_start + inverse.stride(0);
    let more_to_inverse = to_inverse + 2 * inverse.stride(0);

    let mut stages =
        Shared::<[Chunk<K>]>::new_aligned_slice(comptime!(staged * pitch(channels)), 16usize);
    let mut more_stages = Shared::<[Chunk<V>]>::new_aligned_slice(
        comptime!(if pairs == 2 { staged * pitch(more_channels) } else { 1 }),
        16usize,
    );
    let mut factors = Shared::<[f32]>::new_slice(comptime!(2 * BLOCK));
    let mut more_factors = Shared::<[f32]>::new_slice(comptime!(2 * BLOCK));
    let mut a = Sequence::<Array<Pair<K>>>::new();
    take_rows::<K>(from, list, first, &mut stages, &mut a, channels, cut);
    let mut more_a = Sequence::<Array<Pair<V>>>::new();
    if comptime!(pairs == 2) {
        take_rows::<V>(more_from, list, first, &mut more_stages, &mut more_a, more_channels, cut);
    }

    let mine = first + unit / 32 * comptime!(tall * 16) + lane / 4;
    let mut own_inverse = Array::<f32>::new(halves);
    let mut best = Array::<f32>::new(halves);
    let mut best_column = Array::<u32>::new(halves);
    #[unroll]
    for half in 0..halves {
        own_inverse[half] = inverse[inverse_start + (mine + half * 8).min(from.shape(2) - 1)];
        best[half] = LOWEST;
        best_column[half] = 0;
    }

    // Blocks of nothing but padding are left out.
    let start = (split * share).max(missing / BLOCK);
    let end = ((split + 1) * share).min(columns.div_ceil(BLOCK));
    let chunks = comptime!(channels / CHUNK);
    let more_chunks = comptime!(more_channels / CHUNK);
    let mut ahead = Array::<Chunk<K>>::new(comptime!((BLOCK * chunks).div_ceil(units)));
    let mut more_ahead = Array::<Chunk<V>>::new(comptime!((BLOCK * more_chunks).div_ceil(units)));
    fetch::<K>(to, list, start * BLOCK, &mut ahead, channels, units);
    store::<K>(&mut stages, 0usize, &ahead, channels, units);
    if comptime!(pairs == 2) {
        fetch::<V>(more_to, list, start * BLOCK, &mut more_ahead, more_channels, units);
        store::<V>(&mut more_stages, 0usize, &more_ahead, more_channels, units);
    }
    if unit < BLOCK {
        let row = (start * BLOCK + unit).min(columns - 1);
        factors[unit] = inverse[to_inverse + row];
        if comptime!(pairs == 2) {
            more_factors[unit] = inverse[more_to_inverse + row];
        }
    }
    sync_cube();

    let mut number = start;
    while number < end {
        let base = number * BLOCK;
        let stage = (number - start) % 2 * BLOCK;
        let other = BLOCK - stage;
        let more = number + 1 < end;
        if more {
            fetch::<K>(to, list, base + BLOCK, &mut ahead, channels, units);
            if comptime!(pairs == 2) {
                fetch::<V>(more_to, list, base + BLOCK, &mut more_ahead, more_channels, units);
            }
            if unit < BLOCK {
                let row = (base + BLOCK + unit).min(columns - 1);
                factors[other + unit] = inverse[to_inverse + row];
                if comptime!(pairs == 2) {
                    more_factors[other + unit] = inverse[more_to_inverse + row];
                }
            }
        }

        // What makes all products of a row similarities follows at the end. Lengths are divided by
        // one after the other: of two zero vectors the product of both overflows.
        let sums = products::<K>(&a, &stages, stage, channels, tall);
        let mut found = Array::<f32>::new(comptime!(halves * long * 2));
        #[unroll]
        for column in 0..comptime!(long * 2) {
            let (tile, side) = comptime!((column / 2, column % 2));
            let factor = factors[stage + tile * 8 + quad * 2 + side];
            #[unroll]
            for half in 0..halves {
                let sum = sums[half / 2 * long + tile][half % 2].extract(side);
                found[column * halves + half] = sum * factor;
            }
        }
        if comptime!(pairs == 2) {
            let sums = products::<V>(&more_a, &more_stages, stage, more_channels, tall);
            #[unroll]
            for column in 0..comptime!(long * 2) {
                let (tile, side) = comptime!((column / 2, column % 2));
                let factor = more_factors[stage + tile * 8 + quad * 2 + side];
                #[unroll]
                for half in 0..halves {
                    let sum = sums[half / 2 * long + tile][half % 2].extract(side);
                    let place = comptime!(column * halves + half);
                    found[place] = found[place] * own_inverse[half] * (sum * factor);
                }
            }
        }
        if base < missing || base + BLOCK > columns {
            #[unroll]
            for column in 0..comptime!(long * 2) {
                let own = base + column / 2 * 8 + quad * 2 + column % 2;
                let exists = own >= missing && own < columns;
                #[unroll]
                for half in 0..halves {
                    let place = comptime!(column * halves + half);
                    found[place] = select(exists, found[place], LOWEST);
                }
            }
        }
        // Columns come in their order, so the first of equals stays. NaN is not above anything.
        #[unroll]
        for column in 0..comptime!(long * 2) {
            let own = (base + column / 2 * 8 + quad * 2 + column % 2) as u32;
            #[unroll]
            for half in 0..halves {
                let one = found[column * halves + half];
                let better = one > best[half];
                best[half] = select(better, one, best[half]);
                best_column[half] = select(better, own, best_column[half]);
            }
        }

        if more {
            store::<K>(&mut stages, other, &ahead, channels, units);
            if comptime!(pairs == 2) {
                store::<V>(&mut more_stages, other, &more_ahead, more_channels, units);
            }
        }
        sync_cube();
        number += 1;
    }

    let heads = from.shape(1);
    let (outer, inner) =
        if comptime!(whole) { (list / heads, list % heads) } else { (split, list) };
    let similarity_start = outer * similarity.stride(0) + inner * similarity.stride(1);
    let index_start = outer * index.stride(0) + inner * index.stride(1);
    #[unroll]
    for half in 0..halves {
        let (mut highest, mut column) = (best[half], best_column[half]);
        #[unroll]
        for pass in 0..2u32 {
            let value = plane_shuffle_xor(highest, comptime!(pass + 1));
            let place = plane_shuffle_xor(column, comptime!(pass + 1));
            let better = value > highest || (value == highest && place < column);
            highest = select(better, value, highest);
            column = select(better, place, column);
        }
        let row = mine + half * 8;
        if quad == 0 && row < from.shape(2) {
            let mut scaled = highest * own_inverse[half];
            if comptime!(pairs == 2) {
                let place = inverse_start + 2 * inverse.stride(0) + row;
                scaled = highest * inverse[place];
            }
            let exists = highest > LOWEST && scaled > NONE;
            let most = select(scaled > 1.0, 1.0, scaled);
            similarity[similarity_start + row] = select(exists, most, NONE);
            index[index_start + row] = J::cast_from(select(exists, column, 0u32));
        }
    }
}
