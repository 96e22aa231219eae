use cubecl::prelude::*;

use super::head::{Bounds, head_of};
use crate::common::{
    eviction::{
        head::Head,
        weakest::{UNITS, of_cube, protected, weakest},
    },
    line::{at, write},
    order::order,
    vector::dot,
};

/// Units that compare a row together.
const LANES: usize = 8;
/// Rows that a unit loads before it looks at the first of them.
const AHEAD: usize = 2;
/// Rows that are compared at once.
const ROWS: usize = UNITS / LANES * AHEAD;

/// Finds the cluster of each head that goes, or its first free row, and the one that it is most
/// redundant with, the last ones left out: `[batch, heads, 2]`, and their redundancy,
/// `[batch, heads, 1]`. A cube a head.
/// `ages` and `ranks` are for its own use, `[batch, heads, clusters + 1]`.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn find<E: Float, I: Int, N: Size>(
    directions: &Tensor<Vector<E, N>>,
    values: &Tensor<Vector<E, N>>,
    offsets: &Tensor<I>,
    representatives: &Tensor<I>,
    positions: &Tensor<I>,
    new_positions: &Tensor<I>,
    scores: &Tensor<f32>,
    limits: &Tensor<I>,
    ages: &mut Tensor<I>,
    ranks: &mut Tensor<f32>,
    places: &mut Tensor<I>,
    redundancy: &mut Tensor<f32>,
    bounds: &Bounds,
    #[comptime] vectors: usize,
    #[comptime] width: usize,
    #[define(E, I)] _types: [ElemType; 2],
    #[define(N)] _vector: usize,
) {
    let list = CUBE_POS;
    let (heads, columns) = (positions.shape(1), positions.shape(2));
    if list >= positions.shape(0) * heads {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let height = representatives.shape(2);
    let own = head_of::<I>(offsets, limits, new_positions, list, heads, height, columns, bounds);
    // Clusters by the positions and scores of their representatives.
    let mut cluster = unit;
    while cluster <= own.count {
        let mut column = columns;
        let mut age = new_positions[at::<I>(new_positions, own.batch, own.head, 0)];
        if cluster < own.count {
            let place = own.first_cluster + cluster;
            let represents = representatives[at::<I>(representatives, own.batch, own.head, place)];
            column = own.first_column + usize::cast_from(represents);
            age = positions[at::<I>(positions, own.batch, own.head, column)];
        }
        let rank = scores[at::<f32>(scores, own.batch, own.head, column)];
        write::<I>(ages, own.batch, own.head, cluster, age);
        write::<f32>(ranks, own.batch, own.head, cluster, rank);
        cluster += UNITS;
    }
    sync_storage();

    let head = Head {
        batch: own.batch,
        head: own.head,
        first: 0,
        newest: own.count,
        end: 0,
        is_ragged: false,
        has_free_slots: false,
    };
    let mut shared = Shared::<[u32]>::new_slice(UNITS);
    let protected =
        protected::<I>(&*ages, new_positions, &head, own.sinks, own.recent, &mut shared);
    let gone = weakest::<I>(&*ages, new_positions, &*ranks, &head, &protected, &mut shared);

    let steps = comptime!(vectors.div_ceil(LANES));
    let lane = unit % LANES;
    let row = unit / LANES;
    let mut key = Array::<Vector<f32, N>>::new(steps);
    let mut value = Array::<Vector<f32, N>>::new(steps);
    #[unroll]
    for step in 0..steps {
        let vector = (lane + step * LANES).min(vectors - 1);
        key[step] = vector_of::<E, N>(directions, own.start + gone, vector, width);
        value[step] = vector_of::<E, N>(values, own.start + gone, vector, width);
    }
    // Of each row and lane: products of keys, lengths of keys, and the same of values.
    let mut sums = Shared::<[f32]>::new_slice(comptime!(4 * ROWS * LANES));
    let own_key = length_of_own::<N>(&key, &mut sums, vectors, width);
    let own_value = length_of_own::<N>(&value, &mut sums, vectors, width);

    let mut best = 0u32;
    let mut oldest = 0u32;
    let mut target = 0u32;
    let mut like_best = f32::new(-2.0);
    let mut tile = 0usize.runtime();
    while tile < own.count {
        #[unroll]
        for ahead in 0..AHEAD {
            let place = row + comptime!(ahead * (UNITS / LANES));
            let other = own.start + (tile + place).min(own.count - 1);
            let mut of_keys = f32::new(0.0);
            let mut key_square = f32::new(0.0);
            let mut of_values = f32::new(0.0);
            let mut value_square = f32::new(0.0);
            #[unroll]
            for step in 0..steps {
                let vector = lane + step * LANES;
                if vector < vectors {
                    let other_key = vector_of::<E, N>(directions, other, vector, width);
                    let other_value = vector_of::<E, N>(values, other, vector, width);
                    of_keys += dot::<N>(key[step], other_key, width);
                    key_square += dot::<N>(other_key, other_key, width);
                    of_values += dot::<N>(value[step], other_value, width);
                    value_square += dot::<N>(other_value, other_value, width);
                }
            }
            let to = place * LANES + lane;
            sums[to] = of_keys;
            sums[comptime!(ROWS * LANES) + to] = key_square;
            sums[comptime!(2 * ROWS * LANES) + to] = of_values;
            sums[comptime!(3 * ROWS * LANES) + to] = value_square;
        }
        sync_cube();
        let cluster = tile + unit;
        if unit < ROWS && cluster < own.count && cluster != gone {
            let age = usize::cast_from(ages[at::<I>(&*ages, own.batch, own.head, cluster)]);
            if !protected.has::<I>(&*ages, new_positions, &head, age, true) {
                let keys = cosine(&sums, 0usize, unit, own_key);
                let values = cosine(&sums, comptime!(2 * ROWS * LANES), unit, own_value);
                let like = (keys * values).min(1.0);
                // The highest, NaN below all, and of equal ones the oldest.
                let rank = u32::MAX - order(u32::reinterpret(like));
                let age = u32::MAX - u32::cast_from(age);
                if rank > best || (rank == best && age > oldest) {
                    best = rank;
                    oldest = age;
                    like_best = like;
                    target = u32::cast_from(cluster);
                }
            }
        }
        sync_cube();
        tile += ROWS;
    }
    let highest = of_cube(&mut shared, best, false);
    let candidate = select(best == highest, oldest, 0u32);
    let first = of_cube(&mut shared, candidate, false);
    // Nothing is like it where all others stay as they are, and nothing like a free row.
    if (first == 0 && unit == 0) || (candidate > 0 && candidate == first) {
        let like = select(own.takes_free, f32::new(-2.0), like_best);
        let gone = select(own.takes_free, own.count, gone);
        write::<f32>(redundancy, own.batch, own.head, 0, like);
        write::<I>(places, own.batch, own.head, 0, I::cast_from(gone));
        write::<I>(places, own.batch, own.head, 1, I::cast_from(target));
    }
}

/// The length of the rows that units have parts of.
#[cube]
fn length_of_own<N: Size>(
    row: &Array<Vector<f32, N>>,
    sums: &mut Shared<[f32]>,
    #[comptime] vectors: usize,
    #[comptime] width: usize,
) -> f32 {
    let unit = UNIT_POS as usize;
    let lane = unit % LANES;
    let mut square = f32::new(0.0);
    #[unroll]
    for step in 0..comptime!(vectors.div_ceil(LANES)) {
        if lane + step * LANES < vectors {
            square += dot::<N>(row[step], row[step], width);
        }
    }
    // Every row of units has the same.
    if unit < LANES {
        sums[unit] = square;
    }
    sync_cube();
    let mut all = f32::new(0.0);
    for other in 0..LANES {
        all += sums[other];
    }
    sync_cube();
    all.sqrt()
}

/// The cosine of a row from the parts that its lanes have left.
#[cube]
fn cosine(sums: &Shared<[f32]>, #[comptime] from: usize, row: usize, own: f32) -> f32 {
    let mut product = f32::new(0.0);
    let mut square = f32::new(0.0);
    #[unroll]
    for lane in 0..LANES {
        product += sums[from + row * LANES + lane];
        square += sums[comptime!(from + ROWS * LANES) + row * LANES + lane];
    }
    let mut cosine = f32::new(0.0);
    if square > f32::new(0.0) && own > f32::new(0.0) {
        cosine = product / (square.sqrt() * own);
    }
    cosine
}

/// A vector of a row.
#[cube]
fn vector_of<E: Float, N: Size>(
    rows: &Tensor<Vector<E, N>>,
    row: usize,
    vector: usize,
    #[comptime] width: usize,
) -> Vector<f32, N> {
    let channel = vector * width;
    Vector::cast_from(rows[(row * rows.stride(0) + channel * rows.stride(1)) / width])
}
