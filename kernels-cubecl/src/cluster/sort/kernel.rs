use cubecl::prelude::*;

use crate::common::{line::StridedSlice, scan::inclusive_sum};

/// Bits of a cluster that one pass sorts by.
pub(super) const BITS: usize = 4;
/// Values they have.
pub(super) const DIGITS: usize = 1 << BITS;

#[cube]
fn list<I: Int>(x: &mut Tensor<I>, batch: usize, head: usize) -> StridedSlice {
    StridedSlice { start: batch * x.stride(0) + head * x.stride(1), stride: x.stride(2) }
}

/// The lists of a row.
#[derive(CubeType, Clone, Copy)]
struct Row {
    clusters: StridedSlice,
    order: StridedSlice,
    tokens_by_cluster: StridedSlice,
    scratch: StridedSlice,
}

/// The part of `count` places that is this unit's: from where, and to where.
#[cube]
fn own_part(count: usize, #[comptime] units: usize) -> (usize, usize) {
    let share = count.div_ceil(units);
    let from = (UNIT_POS as usize * share).min(count);
    (from, (from + share).min(count))
}

/// See [`super::sort_by_cluster`]. One cube a row of `clusters`, `units` of them, a power of two;
/// `passes` sort digits of a cluster, the lowest first, and each keeps the order of those before.
///
/// Every unit goes through a part of the list by itself, so that what it counts needs no atomics
/// and keeps its order.
#[cube(launch)]
pub(super) fn sort_by_cluster<I: Int>(
    clusters: &Tensor<I>,
    order: &mut Tensor<I>,
    tokens_by_cluster: &mut Tensor<I>,
    scratch: &mut Tensor<I>,
    padding_columns: &mut Tensor<I>,
    passes: usize,
    #[comptime] units: usize,
    #[define(I)] _type: ElemType,
) {
    let unit = UNIT_POS as usize;
    let index = CUBE_POS_X as usize;
    let heads = clusters.shape(1);
    let (batch, head) = (index / heads, index % heads);
    let columns = clusters.shape(2);
    let of_clusters = StridedSlice {
        start: batch * clusters.stride(0) + head * clusters.stride(1),
        stride: clusters.stride(2),
    };
    let row = Row {
        clusters: of_clusters,
        order: list::<I>(order, batch, head),
        tokens_by_cluster: list::<I>(tokens_by_cluster, batch, head),
        scratch: list::<I>(scratch, batch, head),
    };
    let of_padding = batch * padding_columns.stride(0) + head * padding_columns.stride(1);
    let mut scan = Shared::<[u32]>::new_slice(comptime!(2 * units));
    // How many of a digit each unit has, then where the next of them goes: digit after digit, a
    // number a unit.
    let mut places = Shared::<[u32]>::new_slice(comptime!(DIGITS * units));

    // Columns of no cluster come first.
    let (from, to) = own_part(columns, units);
    let mut own = 0u32;
    for column in from..to {
        if clusters[row.clusters.at(column)] < I::new(0) {
            own += 1;
        }
    }
    let end = inclusive_sum(&mut scan, own, units);
    let last = comptime!(units.ilog2() as usize % 2 * units + units - 1);
    let without = scan[last] as usize;
    let mut next_without = (end - own) as usize;
    let mut next = without + from - next_without;
    for column in from..to {
        if clusters[row.clusters.at(column)] < I::new(0) {
            order[row.order.at(next_without)] = I::cast_from(column);
            tokens_by_cluster[row.tokens_by_cluster.at(next_without)] = I::cast_from(next_without);
            next_without += 1;
        } else {
            order[row.order.at(next)] = I::cast_from(column);
            next += 1;
        }
    }
    if unit == 0 {
        padding_columns[of_padding] = I::cast_from(without);
    }
    sync_storage();

    let (from, to) = own_part(columns - without, units);
    for pass in 0..passes {
        // The last pass writes the tokens by cluster.
        let from_scratch = (passes - pass) % 2 == 1;
        let shift = (pass * BITS) as u32;
        #[unroll]
        for digit in 0..DIGITS {
            places[digit * units + unit] = 0;
        }
        for place in from..to {
            let token = token_at::<I>(
                tokens_by_cluster,
                scratch,
                &row,
                without,
                place,
                pass == 0,
                from_scratch,
            );
            let digit = digit_of::<I>(clusters, order, &row, token, shift);
            places[digit * units + unit] += 1;
        }
        sync_cube();
        // Each unit adds up as many numbers as there are digits, in the order of digits.
        let mut sum = 0u32;
        #[unroll]
        for number in 0..DIGITS {
            sum += places[unit * DIGITS + number];
        }
        let mut before = inclusive_sum(&mut scan, sum, units) - sum;
        #[unroll]
        for number in 0..DIGITS {
            let count = places[unit * DIGITS + number];
            places[unit * DIGITS + number] = before;
            before += count;
        }
        sync_cube();
        for place in from..to {
            let token = token_at::<I>(
                tokens_by_cluster,
                scratch,
                &row,
                without,
                place,
                pass == 0,
                from_scratch,
            );
            let digit = digit_of::<I>(clusters, order, &row, token, shift);
            let to = without + places[digit * units + unit] as usize;
            places[digit * units + unit] += 1;
            if from_scratch {
                tokens_by_cluster[row.tokens_by_cluster.at(to)] = I::cast_from(token);
            } else {
                scratch[row.scratch.at(to)] = I::cast_from(token);
            }
        }
        sync_storage();
    }
}

/// The token that the passes before have put at `place` of those in a cluster.
#[cube]
fn token_at<I: Int>(
    tokens_by_cluster: &mut Tensor<I>,
    scratch: &mut Tensor<I>,
    row: &Row,
    without: usize,
    place: usize,
    first: bool,
    from_scratch: bool,
) -> usize {
    let place = without + place;
    let mut token = place;
    if !first {
        if from_scratch {
            token = usize::cast_from(scratch[row.scratch.at(place)]);
        } else {
            token = usize::cast_from(tokens_by_cluster[row.tokens_by_cluster.at(place)]);
        }
    }
    token
}

#[cube]
fn digit_of<I: Int>(
    clusters: &Tensor<I>,
    order: &mut Tensor<I>,
    row: &Row,
    token: usize,
    shift: u32,
) -> usize {
    let column = usize::cast_from(order[row.order.at(token)]);
    let cluster = u32::cast_from(clusters[row.clusters.at(column)]);
    ((cluster >> shift) & comptime!(DIGITS as u32 - 1)) as usize
}
