use briquette_ops::RobustInput;
use cubecl::prelude::*;

use crate::common::{
    eviction::weakest::{UNITS, of_cube},
    line::{at, write},
    order::order,
    scan::inclusive_sum,
};

/// Bits of a digit, of which a unit counts one value.
const BITS: u32 = UNITS.ilog2();
/// Digits of a deviation.
const PASSES: u32 = 32 / BITS;
/// Counts, two numbers a unit of sums, what units share, and what is found.
pub(super) const SHARED_BYTES: usize = (4 * UNITS + 2) * size_of::<u32>();

/// See [`super::robust_scores`]. A cube a head.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn robust_scores<I: Int>(
    sums: &Tensor<f32>,
    squares: &Tensor<f32>,
    numbers: &Tensor<I>,
    positions: &Tensor<I>,
    deviations: &mut Tensor<f32>,
    scores: &mut Tensor<f32>,
    #[comptime] group: usize,
    #[define(I)] _type: ElemType,
) {
    let unit = UNIT_POS as usize;
    let (heads, columns) = (positions.shape(1), positions.shape(2));
    let list = CUBE_POS;
    if list >= positions.shape(0) * heads {
        terminate!();
    }
    let (batch, head) = (list / heads, list % heads);
    let of_list = list * numbers.stride(0);
    let mut left = u32::cast_from(numbers[of_list]);
    let mut seen = u32::cast_from(numbers[of_list + numbers.stride(1)]);
    let mut shared = Shared::<[u32]>::new_slice(UNITS);
    if seen == 0 {
        let mut column = unit;
        while column < columns {
            // One more than the position, zero at padding.
            let next = positions[at::<I>(positions, batch, head, column)] + I::new(1);
            seen = seen.max(u32::cast_from(next));
            column += UNITS;
        }
        seen = of_cube(&mut shared, seen, false);
    }

    let mut column = unit;
    while column < columns {
        let position = positions[at::<I>(positions, batch, head, column)];
        let mut mean = f32::new(0.0);
        let mut deviation = f32::new(-1.0);
        if position >= I::new(0) {
            let position = u32::cast_from(position);
            // A token sees itself.
            let queries = f32::cast_from(seen.max(position + 1) - position);
            let mut of_group = f32::new(0.0);
            #[unroll]
            for one in 0..group {
                let query_head = head * group + one;
                let sum = sums[at::<f32>(sums, batch, query_head, column)];
                let square = squares[at::<f32>(squares, batch, query_head, column)];
                let own = sum / queries;
                let variance = square / queries - own * own;
                of_group += variance.max(f32::new(0.0)).sqrt();
                mean += own;
            }
            let number = comptime!(group as f32);
            mean /= number;
            deviation = of_group / number;
        }
        write::<f32>(scores, batch, head, column, mean);
        write::<f32>(deviations, batch, head, column, deviation);
        column += UNITS;
    }

    if left > 0 {
        let bins = Shared::<[Atomic<u32>]>::new_slice(UNITS);
        let mut scan = Shared::<[u32]>::new_slice(comptime!(2 * UNITS));
        let mut found = Shared::<[u32]>::new_slice(2usize);
        // The order of the last that comes first, a digit more with each pass.
        let mut last = 0u32;
        #[unroll]
        for pass in 0..PASSES {
            let below = comptime!(32 - BITS * (pass + 1));
            bins[unit].store(0);
            sync_cube();
            let mut column = unit;
            while column < columns {
                // Each unit has written these itself.
                let deviation = deviations[at::<f32>(&*deviations, batch, head, column)];
                let order = order(u32::reinterpret(deviation));
                let mut counts = true.runtime();
                if comptime!(pass > 0) {
                    counts = order >> comptime!(if pass > 0 { below + BITS } else { 0 }) == last;
                }
                if counts {
                    let digit = (order >> below) & comptime!(UNITS as u32 - 1);
                    bins[digit as usize].fetch_add(1);
                }
                column += UNITS;
            }
            sync_cube();
            let count = bins[unit].load();
            let end = inclusive_sum(&mut scan, count, UNITS);
            if end - count < left && left <= end {
                found[0] = UNIT_POS;
                found[1] = left - (end - count);
            }
            sync_cube();
            last = (last << BITS) | found[0];
            left = found[1];
            sync_cube();
        }
        let mut column = unit;
        while column < columns {
            let deviation = deviations[at::<f32>(&*deviations, batch, head, column)];
            if order(u32::reinterpret(deviation)) <= last {
                let mean = scores[at::<f32>(&*scores, batch, head, column)];
                write::<f32>(scores, batch, head, column, mean + RobustInput::ABOVE);
            }
            column += UNITS;
        }
    }
}
