use cubecl::prelude::*;

/// The sum of `value` over the units up to this one. `scan` holds two numbers per unit; the sums
/// lie in its first half afterwards if `units` is an even power of two, else in its second.
#[cube]
pub(crate) fn inclusive_sum(scan: &mut Shared<[u32]>, value: u32, #[comptime] units: usize) -> u32 {
    let unit = UNIT_POS as usize;
    let mut sum = value;
    scan[unit] = sum;
    sync_cube();
    let steps = comptime!(units.ilog2());
    #[unroll]
    for step in 0..steps {
        let distance = comptime!(1_usize << step);
        let from = comptime!(step as usize % 2 * units);
        let to = comptime!(units - from);
        if unit >= distance {
            sum += scan[from + unit - distance];
        }
        scan[to + unit] = sum;
        sync_cube();
    }
    sum
}

/// The sum of `value` over the units. `shared` holds a number per unit.
#[cube]
pub(crate) fn sum_of_cube(shared: &mut Shared<[f32]>, value: f32, #[comptime] units: usize) -> f32 {
    let unit = UNIT_POS as usize;
    shared[unit] = value;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(units.ilog2()) {
        let distance = comptime!(units >> (step + 1));
        if unit < distance {
            let other = shared[unit + distance];
            shared[unit] += other;
        }
        sync_cube();
    }
    let sum = shared[0];
    sync_cube();
    sum
}
