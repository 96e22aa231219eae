use cubecl::prelude::*;

use crate::common::{line::StridedSlice, scan::inclusive_sum};

/// Bits of a class that one pass sorts by.
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
    classes: StridedSlice,
    order: StridedSlice,
    members: StridedSlice,
    scratch: StridedSlice,
}

/// The part of `count` places that is this unit's: from where, and to where.
#[cube]
fn own_part(count: usize, #[comptime] units: usize) -> (usize, usize) {
    let share = count.div_ceil(units);
    let from = (UNIT_POS as usize * share).min(count);
    (from, (from + share).min(count))
}

/// See [`super::group`]. One cube a row of `classes`, `units` of them, a power of two; `passes` sort digits of a class,
/// the lowest first, and each keeps the order of those before.
///
/// Every unit goes through a part of the list by itself, so that what it counts needs no atomics and keeps its order.
#[cube(launch)]
pub(super) fn group<I: Int>(
    classes: &Tensor<I>,
    order: &mut Tensor<I>,
    members: &mut Tensor<I>,
    scratch: &mut Tensor<I>,
    none: &mut Tensor<I>,
    passes: usize,
    #[comptime] units: usize,
    #[define(I)] _type: ElemType,
) {
    let unit = UNIT_POS as usize;
    let index = CUBE_POS_X as usize;
    let heads = classes.shape(1);
    let (batch, head) = (index / heads, index % heads);
    let columns = classes.shape(2);
    let of_classes = StridedSlice {
        start: batch * classes.stride(0) + head * classes.stride(1),
        stride: classes.stride(2),
    };
    let row = Row {
        classes: of_classes,
        order: list::<I>(order, batch, head),
        members: list::<I>(members, batch, head),
        scratch: list::<I>(scratch, batch, head),
    };
    let of_none = batch * none.stride(0) + head * none.stride(1);
    let mut scan = Shared::<[u32]>::new_slice(comptime!(2 * units));
    // How many of a digit each unit has, then where the next of them goes: digit after digit, a number a unit.
    let mut places = Shared::<[u32]>::new_slice(comptime!(DIGITS * units));

    // Columns of no class come first.
    let (from, to) = own_part(columns, units);
    let mut own = 0u32;
    for column in from..to {
        if classes[row.classes.at(column)] < I::new(0) {
            own += 1;
        }
    }
    let end = inclusive_sum(&mut scan, own, units);
    let last = comptime!(units.ilog2() as usize % 2 * units + units - 1);
    let without = scan[last] as usize;
    let mut next_without = (end - own) as usize;
    let mut next = without + from - next_without;
    for column in from..to {
        if classes[row.classes.at(column)] < I::new(0) {
            order[row.order.at(next_without)] = I::cast_from(column);
            members[row.members.at(next_without)] = I::cast_from(next_without);
            next_without += 1;
        } else {
            order[row.order.at(next)] = I::cast_from(column);
            next += 1;
        }
    }
    if unit == 0 {
        none[of_none] = I::cast_from(without);
    }
    sync_storage();

    let (from, to) = own_part(columns - without, units);
    for pass in 0..passes {
        // The last pass writes the members.
        let from_scratch = (passes - pass) % 2 == 1;
        let shift = (pass * BITS) as u32;
        #[unroll]
        for digit in 0..DIGITS {
            places[digit * units + unit] = 0;
        }
        for place in from..to {
            let member =
                member_at::<I>(members, scratch, &row, without, place, pass == 0, from_scratch);
            let digit = digit_of::<I>(classes, order, &row, member, shift);
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
            let member =
                member_at::<I>(members, scratch, &row, without, place, pass == 0, from_scratch);
            let digit = digit_of::<I>(classes, order, &row, member, shift);
            let to = without + places[digit * units + unit] as usize;
            places[digit * units + unit] += 1;
            if from_scratch {
                members[row.members.at(to)] = I::cast_from(member);
            } else {
                scratch[row.scratch.at(to)] = I::cast_from(member);
            }
        }
        sync_storage();
    }
}

/// What the passes before have put at `place` of those that have a class.
#[cube]
fn member_at<I: Int>(
    members: &mut Tensor<I>,
    scratch: &mut Tensor<I>,
    row: &Row,
    without: usize,
    place: usize,
    first: bool,
    from_scratch: bool,
) -> usize {
    let place = without + place;
    let mut member = place;
    if !first {
        if from_scratch {
            member = usize::cast_from(scratch[row.scratch.at(place)]);
        } else {
            member = usize::cast_from(members[row.members.at(place)]);
        }
    }
    member
}

#[cube]
fn digit_of<I: Int>(
    classes: &Tensor<I>,
    order: &mut Tensor<I>,
    row: &Row,
    member: usize,
    shift: u32,
) -> usize {
    let column = usize::cast_from(order[row.order.at(member)]);
    let class = u32::cast_from(classes[row.classes.at(column)]);
    ((class >> shift) & comptime!(DIGITS as u32 - 1)) as usize
}
