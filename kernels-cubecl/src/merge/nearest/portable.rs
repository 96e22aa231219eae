// A kernel takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use cubecl::prelude::*;

use crate::common::tile::product::{Rows, SIDE, UNITS, product, quad};

/// Units that share a row whose length they measure.
const OF_ROW: usize = 8;
/// Rows of one cube of [`inverse_norms`].
pub(super) const MEASURED: usize = UNITS / OF_ROW;
/// Below every similarity.
pub(super) const NONE: f32 = -2.0;

/// One over the length of each row, `[batch · heads, rows]`; finite for a zero vector.
#[cube(launch)]
pub(super) fn inverse_norms<X: Float, N: Size>(
    x: &Tensor<Vector<X, N>>,
    inverse: &mut Tensor<f32>,
    heads: usize,
    #[comptime] channels: usize,
    #[define(X)] _type: ElemType,
) {
    let unit = UNIT_POS as usize;
    let list = CUBE_POS_Y as usize;
    let row = CUBE_POS_X as usize * MEASURED + unit / OF_ROW;
    let rows = x.shape(2);
    let mut sums = Shared::<[f32]>::new_slice(UNITS);
    let mut sum = f32::new(0.0);
    if row < rows {
        let start = list / heads * x.stride(0) + list % heads * x.stride(1) + row * x.stride(2);
        let mut channel = unit % OF_ROW * 4;
        while channel < channels {
            let numbers = quad::<X, N>(x, start, channel, channels);
            #[unroll]
            for index in 0..4_usize {
                sum = fma(numbers.extract(index), numbers.extract(index), sum);
            }
            channel += comptime!(OF_ROW * 4);
        }
    }
    sums[unit] = sum;
    sync_cube();
    if row < rows && unit.is_multiple_of(OF_ROW) {
        for index in 1..OF_ROW {
            sum += sums[unit + index];
        }
        let place = list * inverse.stride(0) + row;
        inverse[place] = 1.0 / sum.sqrt().max(f32::MIN_POSITIVE);
    }
}

/// Where the rows from `first` on begin, and what makes them unit vectors. Behind the last stand
/// copies of it.
#[cube]
fn point<X: Float, N: Size>(
    rows: &mut Rows,
    factors: &mut Shared<[f32]>,
    x: &Tensor<Vector<X, N>>,
    inverse: &Tensor<f32>,
    first: usize,
    list: usize,
    heads: usize,
) {
    let mut place = UNIT_POS as usize;
    let start = list / heads * x.stride(0) + list % heads * x.stride(1);
    while place < rows.count {
        let row = (first + place).min(x.shape(2) - 1);
        rows.starts[place] = (start + row * x.stride(2)) as u32;
        factors[place] = inverse[list * inverse.stride(0) + row];
        place += UNITS;
    }
}

/// Products of unit vectors from products.
#[cube]
fn scale(
    sums: &mut Array<f32>,
    left: &Shared<[f32]>,
    right: &Shared<[f32]>,
    #[comptime] m: usize,
    #[comptime] n: usize,
) {
    let (across, down) = (UNIT_POS as usize % SIDE, UNIT_POS as usize / SIDE);
    #[unroll]
    for j in 0..n {
        #[unroll]
        for i in 0..m {
            // One after the other: of two zero vectors the product of both overflows.
            sums[i * n + j] = sums[i * n + j] * left[down + i * SIDE] * right[across + j * SIDE];
        }
    }
}

/// The best of a part of `to` for each row of `from`: `similarity` and `index` are
/// `[splits, batch · heads, from]`.
#[cube(launch)]
pub(super) fn search<K: Float, V: Float, N: Size, I: Int>(
    from: &Tensor<Vector<K, N>>,
    to: &Tensor<Vector<K, N>>,
    from_inverse: &Tensor<f32>,
    to_inverse: &Tensor<f32>,
    more_from: &Tensor<Vector<V, N>>,
    more_to: &Tensor<Vector<V, N>>,
    more_from_inverse: &Tensor<f32>,
    more_to_inverse: &Tensor<f32>,
    padding: &Tensor<I>,
    similarity: &mut Tensor<f32>,
    index: &mut Tensor<u32>,
    heads: usize,
    tiles_of_split: usize,
    #[comptime] channels: [usize; 2],
    #[comptime] pairs: usize,
    #[comptime] tile: [usize; 2],
    #[define(K, V, I)] _types: [ElemType; 3],
) {
    let unit = UNIT_POS as usize;
    let (across, down) = (unit % SIDE, unit / SIDE);
    let [m, n] = comptime!(tile);
    let first = CUBE_POS_X as usize * comptime!(m * SIDE);
    let list = CUBE_POS_Y as usize;
    let split = CUBE_POS_Z as usize;
    let columns = to.shape(2);
    let missing = usize::cast_from(padding[list * padding.stride(0)]);

    let mut left = Rows::new(m);
    let mut right = Rows::new(n);
    let mut of_left = Shared::<[f32]>::new_slice(comptime!(m * SIDE));
    let mut of_right = Shared::<[f32]>::new_slice(comptime!(n * SIDE));
    let mut sums = Array::<f32>::new(comptime!(m * n));
    let mut factors = Array::<f32>::new(comptime!(m * n));
    let mut best = Array::<f32>::new(m);
    let mut best_column = Array::<u32>::new(m);
    #[unroll]
    for i in 0..m {
        best[i] = NONE;
        best_column[i] = 0;
    }

    let mut base = split * tiles_of_split * comptime!(n * SIDE);
    let end = (base + tiles_of_split * comptime!(n * SIDE)).min(columns);
    while base < end {
        point::<K, N>(&mut left, &mut of_left, from, from_inverse, first, list, heads);
        point::<K, N>(&mut right, &mut of_right, to, to_inverse, base, list, heads);
        product::<K, N, K, N>(from, &mut left, to, &mut right, &mut sums, comptime!(channels[0]));
        scale(&mut sums, &of_left, &of_right, m, n);
        if comptime!(pairs == 2) {
            sync_cube();
            point::<V, N>(
                &mut left,
                &mut of_left,
                more_from,
                more_from_inverse,
                first,
                list,
                heads,
            );
            point::<V, N>(&mut right, &mut of_right, more_to, more_to_inverse, base, list, heads);
            product::<V, N, V, N>(
                more_from,
                &mut left,
                more_to,
                &mut right,
                &mut factors,
                comptime!(channels[1]),
            );
            scale(&mut factors, &of_left, &of_right, m, n);
            #[unroll]
            for place in 0..comptime!(m * n) {
                sums[place] *= factors[place];
            }
        }
        #[unroll]
        for j in 0..n {
            let column = base + across + j * SIDE;
            if column < columns && column >= missing {
                #[unroll]
                for i in 0..m {
                    // Not the smaller of the two, which would hide NaN. OpenGL does not promise
                    // that NaN is above nothing.
                    let mut found = sums[i * n + j];
                    let number = !found.is_nan();
                    if found > 1.0 {
                        found = f32::new(1.0);
                    }
                    // Columns come in their order, so the first of equals stays.
                    if number && found > best[i] {
                        best[i] = found;
                        best_column[i] = column as u32;
                    }
                }
            }
        }
        // Lengths are read by now, of whoever is last.
        sync_cube();
        base += comptime!(n * SIDE);
    }

    let mut found = Shared::<[f32]>::new_slice(UNITS);
    let mut found_column = Shared::<[u32]>::new_slice(UNITS);
    #[unroll]
    for i in 0..m {
        found[unit] = best[i];
        found_column[unit] = best_column[i];
        sync_cube();
        let row = first + down + i * SIDE;
        if across == 0 && row < from.shape(2) {
            let (mut highest, mut column) = (best[i], best_column[i]);
            for other in 1..SIDE {
                let (value, place) = (found[unit + other], found_column[unit + other]);
                if value > highest || (value == highest && place < column) {
                    highest = value;
                    column = place;
                }
            }
            let at = split * similarity.stride(0) + list * similarity.stride(1) + row;
            similarity[at] = highest;
            let at = split * index.stride(0) + list * index.stride(1) + row;
            index[at] = column;
        }
        sync_cube();
    }
}

/// The best of all splits, one unit a row.
#[cube(launch)]
pub(super) fn merge<I: Int>(
    similarities: &Tensor<f32>,
    indices: &Tensor<u32>,
    similarity: &mut Tensor<f32>,
    index: &mut Tensor<I>,
    #[define(I)] _type: ElemType,
) {
    let list = CUBE_POS_Y as usize;
    let row = CUBE_POS_X as usize * UNITS + UNIT_POS as usize;
    let (heads, rows) = (similarity.shape(1), similarity.shape(2));
    if row < rows {
        let mut highest = NONE.runtime();
        let mut column = 0_u32.runtime();
        for split in 0..similarities.shape(0) {
            let at = split * similarities.stride(0) + list * similarities.stride(1) + row;
            let value = similarities[at];
            if value > highest {
                highest = value;
                column = indices[split * indices.stride(0) + list * indices.stride(1) + row];
            }
        }
        let at = list / heads * similarity.stride(0) + list % heads * similarity.stride(1) + row;
        similarity[at] = highest;
        let at = list / heads * index.stride(0) + list % heads * index.stride(1) + row;
        index[at] = I::cast_from(column);
    }
}
