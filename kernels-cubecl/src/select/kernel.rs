use cubecl::prelude::*;

/// Bins of a histogram: digits of 11 bits, and of 10 the last.
pub(super) const BINS: usize = 2048;
/// Scores a unit loads before it looks at the first of them, so that loads are under way together.
const LOADS: usize = 8;
/// Columns a bit each of a word.
const WORD: usize = 32;

/// The order of a score's bits: the higher the score, the lower the number; NaN comes last.
///
/// It tells −0 from +0 as `f32::total_cmp` does. It goes by bits, since comparisons of numbers may flush small ones.
#[cube]
fn order(bits: u32) -> u32 {
    let negative = bits >> 31;
    let magnitude = bits & 0x7fff_ffff;
    let mut order = 0x7fff_ffff - magnitude;
    if negative == 1 {
        order = bits;
    }
    if magnitude > 0x7f80_0000 {
        order = 0xffff_ffff;
    }
    order
}

/// The sum of `value` over the units up to this one. `scan` holds two numbers a unit; the first units' sums lie in its
/// first half afterwards if `units` is an even power of two, else in its second.
#[cube]
fn inclusive_sum(scan: &mut Shared<[u32]>, value: u32, #[comptime] units: usize) -> u32 {
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

/// See [`super::select`]. One cube a row of `scores`, `units` of them, a power of two.
///
/// A row of `rows` says of a row of scores: the first column it holds, the columns from which to which it chooses, and
/// how many of them. What it holds before and behind those is kept.
#[cube(launch)]
pub(super) fn select<I: Int>(
    scores: &Tensor<f32>,
    rows: &Tensor<I>,
    indices: &mut Tensor<I>,
    nan: &mut Tensor<I>,
    #[comptime] units: usize,
    #[define(I)] _type: ElemType,
) {
    let unit = UNIT_POS as usize;
    let row = CUBE_POS;
    let heads = scores.shape(1);
    let columns = scores.shape(2);
    let stride = scores.stride(2);
    let start = row / heads * scores.stride(0) + row % heads * scores.stride(1);
    let of_row = row * rows.stride(0);
    let first = usize::cast_from(rows[of_row]);
    let low = usize::cast_from(rows[of_row + rows.stride(1)]);
    let high = usize::cast_from(rows[of_row + 2 * rows.stride(1)]);
    let wanted = u32::cast_from(rows[of_row + 3 * rows.stride(1)]);

    // Histograms; then bit by bit which columns are kept, and which are candidates.
    let bins = Shared::<[Atomic<u32>]>::new_slice(BINS);
    let mut scan = Shared::<[u32]>::new_slice(comptime!(2 * units));
    // The digit of the last score kept, and how many are kept of those that have it.
    let mut found = Shared::<[u32]>::new_slice(2usize);
    let nans = Shared::<[Atomic<u32>]>::new_slice(1usize);
    let per_unit = comptime!(BINS / units);
    #[unroll]
    for bin in 0..per_unit {
        bins[unit * per_unit + bin].store(0);
    }
    if unit == 0 {
        found[0] = 0;
        found[1] = wanted;
        nans[0].store(0);
    }
    sync_cube();

    // The order of the last score kept, a digit more with each pass.
    let mut last = 0u32;
    let mut left = wanted;
    #[unroll]
    for pass in 0..3 {
        let shift = comptime!([21u32, 10, 0][pass as usize]);
        let digit_bits = comptime!([11u32, 11, 10][pass as usize]);
        let digit_mask = comptime!((1u32 << digit_bits) - 1);
        let mut base = low;
        while base < high {
            let mut orders = Array::<u32>::new(LOADS);
            #[unroll]
            for load in 0..LOADS {
                let column = (base + load * units + unit).min(high - 1);
                orders[load] = order(u32::reinterpret(scores[start + column * stride]));
            }
            #[unroll]
            for load in 0..LOADS {
                let mut counts = base + load * units + unit < high;
                if comptime!(pass > 0) {
                    let digits_before = comptime!(if pass > 0 { shift + digit_bits } else { 0 });
                    counts = counts && orders[load] >> digits_before == last;
                }
                if counts {
                    let digit = (orders[load] >> shift) & digit_mask;
                    bins[digit as usize].fetch_add(1);
                }
            }
            base += comptime!(LOADS * units);
        }
        sync_cube();

        let mut sum = 0u32;
        #[unroll]
        for bin in 0..per_unit {
            sum += bins[unit * per_unit + bin].load();
        }
        let end = inclusive_sum(&mut scan, sum, units);
        let mut rest = left - (end - sum);
        // Of one unit at most, of none if nothing is wanted.
        if end - sum < left && left <= end {
            let mut digit = u32::cast_from(unit * per_unit);
            let mut searching = true;
            #[unroll]
            for bin in 0..per_unit {
                let count = bins[unit * per_unit + bin].load();
                if searching {
                    if rest > count {
                        rest -= count;
                        digit += 1;
                    } else {
                        searching = false;
                    }
                }
            }
            found[0] = digit;
            found[1] = rest;
        }
        #[unroll]
        for bin in 0..per_unit {
            bins[unit * per_unit + bin].store(0);
        }
        sync_cube();
        last = (last << digit_bits) | found[0];
        left = found[1];
    }

    let width = indices.shape(2);
    let out_stride = indices.stride(2);
    let out_start = row / heads * indices.stride(0) + row % heads * indices.stride(1);
    let kept = low - first + (columns - high) + wanted as usize;
    let fillers = width - kept;
    let mut filler = unit;
    while filler < fillers {
        indices[out_start + filler * out_stride] = I::cast_from(0u32);
        filler += units;
    }

    // What comes before this tile: kept whatever else is, and candidates of which only the first are.
    let mut kept_before = 0u32;
    let mut ties_before = 0u32;
    let mut base = first;
    while base < columns {
        #[unroll]
        for part in 0..comptime!(WORD / LOADS) {
            let of_part = base + part * comptime!(LOADS * units);
            // Short rows end long before the tile.
            if of_part < columns {
                let mut bits = Array::<u32>::new(LOADS);
                #[unroll]
                for load in 0..LOADS {
                    let column = (of_part + load * units + unit).min(columns - 1);
                    bits[load] = u32::reinterpret(scores[start + column * stride]);
                }
                #[unroll]
                for load in 0..LOADS {
                    let place = comptime!((part * LOADS + load) * units) + unit;
                    let column = base + place;
                    if column < columns {
                        let order = order(bits[load]);
                        let chosen = column >= low && column < high;
                        let bit = 1u32 << u32::cast_from(place % WORD);
                        if !chosen || order < last {
                            bins[place / WORD].fetch_add(bit);
                        } else if order == last {
                            bins[units + place / WORD].fetch_add(bit);
                        }
                        if bits[load] & 0x7fff_ffff > 0x7f80_0000 {
                            nans[0].fetch_add(1);
                        }
                    }
                }
            }
        }
        sync_cube();

        let kept_here = bins[unit].load().count_ones();
        let ties_here = bins[units + unit].load().count_ones();
        // A tile has 2^15 columns at most, so both counts fit one number.
        let both = kept_here | ties_here << 16;
        let before = inclusive_sum(&mut scan, both, units) - both;
        let sums = comptime!(units.ilog2() as usize % 2 * units);
        let all = scan[comptime!(sums + units - 1)];
        sync_cube();
        scan[unit] = kept_before + (before & 0xffff);
        scan[units + unit] = ties_before + (before >> 16);
        sync_cube();

        let parts = (columns - base).div_ceil(units).min(WORD);
        for part in 0..parts {
            let place = part * units + unit;
            let word = place / WORD;
            let bit = u32::cast_from(place % WORD);
            let lower = (1u32 << bit) - 1;
            let kept = bins[word].load();
            let ties = bins[units + word].load();
            let ties_below = scan[units + word] + (ties & lower).count_ones();
            let kept_below = scan[word] + (kept & lower).count_ones();
            let is_kept = (kept >> bit) & 1 == 1;
            let is_tie = (ties >> bit) & 1 == 1 && ties_below < left;
            if is_kept || is_tie {
                let out = fillers + (kept_below + ties_below.min(left)) as usize;
                indices[out_start + out * out_stride] = I::cast_from(base + place);
            }
        }
        sync_cube();
        bins[unit].store(0);
        bins[units + unit].store(0);
        kept_before += all & 0xffff;
        ties_before += all >> 16;
        base += comptime!(WORD * units);
        sync_cube();
    }
    if unit == 0 {
        let place = row * nan.stride(0);
        nan[place] = I::cast_from(nans[0].load());
    }
}
