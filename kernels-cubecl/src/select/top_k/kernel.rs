use cubecl::prelude::*;

use crate::common::{order::order, scan::inclusive_sum};

/// Bins of a histogram: digits of 11 bits, and of 10 the last.
pub(super) const BINS: usize = 2048;
/// Passes over the scores until the last that is kept is known, one digit each.
pub(super) const PASSES: usize = 3;
/// Scores a unit loads before it looks at the first of them, so that loads are under way together.
const LOADS: usize = 8;
/// Columns of a word, one bit each.
const WORD: usize = 32;

/// Row of scores, and the columns that are chosen from.
#[derive(CubeType, Clone, Copy)]
struct ScoreRow {
    /// Start of its scores.
    start: usize,
    /// First column that is an entry.
    first: usize,
    /// First column that is chosen from. Entries before it are kept.
    low: usize,
    /// End of the columns that are chosen from. Entries from it on are kept.
    high: usize,
    /// Number of columns that are chosen.
    wanted: u32,
}

#[cube]
fn read_row<I: Int>(scores: &Tensor<f32>, rows: &Tensor<I>, row: usize) -> ScoreRow {
    let heads = scores.shape(1);
    let of_row = row * rows.stride(0);
    ScoreRow {
        start: row / heads * scores.stride(0) + row % heads * scores.stride(1),
        first: usize::cast_from(rows[of_row]),
        low: usize::cast_from(rows[of_row + rows.stride(1)]),
        high: usize::cast_from(rows[of_row + 2 * rows.stride(1)]),
        wanted: u32::cast_from(rows[of_row + 3 * rows.stride(1)]),
    }
}

/// Shared memory of a cube.
#[derive(CubeType, Clone)]
struct Memory {
    /// Histograms; then bit by bit which columns are kept, and which are candidates.
    bins: Shared<[Atomic<u32>]>,
    /// Two numbers per unit.
    scan: Shared<[u32]>,
    /// Digit of the last score that is kept, number of kept scores that have it, and number of
    /// scores that have it in parts of the row before.
    found: Shared<[u32]>,
    /// Number of columns kept in parts of the row before, and number of scores that are NaN.
    sums: Shared<[Atomic<u32>]>,
    /// Units of the cube.
    #[cube(comptime)]
    units: usize,
}

#[cube]
fn new_memory(#[comptime] units: usize) -> Memory {
    let memory = Memory {
        bins: Shared::<[Atomic<u32>]>::new_slice(BINS),
        scan: Shared::<[u32]>::new_slice(comptime!(2 * units)),
        found: Shared::<[u32]>::new_slice(3usize),
        sums: Shared::<[Atomic<u32>]>::new_slice(2usize),
        units,
    };
    clear_bins(&memory);
    memory
}

/// Clears the bins that each unit alone reads in [`find_digit`].
#[cube]
fn clear_bins(memory: &Memory) {
    let per_unit = comptime!(BINS / memory.units);
    #[unroll]
    for bin in 0..per_unit {
        memory.bins[UNIT_POS as usize * per_unit + bin].store(0);
    }
}

/// Number of bits of a pass's digit, and of those below it.
fn digit(pass: usize) -> (u32, u32) {
    [(11, 21), (11, 10), (10, 0)][pass]
}

/// Counts by their digit the scores of some columns whose digits before are those of `last`.
#[cube]
fn count_digits(
    scores: &Tensor<f32>,
    row: &ScoreRow,
    from: usize,
    to: usize,
    last: u32,
    memory: &Memory,
    #[comptime] pass: usize,
) {
    let units = comptime!(memory.units);
    let stride = scores.stride(2);
    let (bits, below) = comptime!(digit(pass));
    let mask = comptime!((1u32 << bits) - 1);
    let mut base = from;
    while base < to {
        let mut orders = Array::<u32>::new(LOADS);
        #[unroll]
        for load in 0..LOADS {
            let column = (base + load * units + UNIT_POS as usize).min(to - 1);
            orders[load] = order(u32::reinterpret(scores[row.start + column * stride]));
        }
        #[unroll]
        for load in 0..LOADS {
            let mut counts = base + load * units + (UNIT_POS as usize) < to;
            if comptime!(pass > 0) {
                let before = comptime!(if pass > 0 { bits + below } else { 0 });
                counts = counts && orders[load] >> before == last;
            }
            if counts {
                let digit = (orders[load] >> below) & mask;
                memory.bins[digit as usize].fetch_add(1);
            }
        }
        base += comptime!(LOADS * units);
    }
}

/// Finds the digit of the last of `left` scores that are kept. `counts` are those of this unit's
/// bins in all parts of the row, and `before` in the parts before this one.
#[cube]
fn find_digit(counts: &Array<u32>, before: &Array<u32>, left: u32, memory: &mut Memory) {
    let units = comptime!(memory.units);
    let per_unit = comptime!(BINS / units);
    let mut sum = 0u32;
    #[unroll]
    for bin in 0..per_unit {
        sum += counts[bin];
    }
    let end = inclusive_sum(&mut memory.scan, sum, units);
    // Of one unit at most, of none if nothing is wanted.
    if end - sum < left && left <= end {
        let mut rest = left - (end - sum);
        let mut searching = true;
        #[unroll]
        for bin in 0..per_unit {
            if searching {
                if rest > counts[bin] {
                    rest -= counts[bin];
                } else {
                    searching = false;
                    memory.found[0] = u32::cast_from(UNIT_POS as usize * per_unit + bin);
                    memory.found[1] = rest;
                    memory.found[2] = before[bin];
                }
            }
        }
    }
}

/// Which of some columns are kept.
#[derive(CubeType, Clone, Copy)]
struct Cut {
    /// Those whose order is lower than this.
    last: u32,
    /// Of those that equal it the first, until there are so many.
    left: u32,
    /// Columns before these that are kept for sure.
    kept_before: u32,
    /// Columns before these whose order equals the last.
    ties_before: u32,
}

/// Writes which columns of the row of this cube are kept to their places, ascending: those that are
/// protected, and those of the cut; and the padding before, if `begins` is set. With `splits` the
/// columns that are not kept are written, too, ascending. Bins are clear before.
#[cube]
fn write_columns<I: Int>(
    scores: &Tensor<f32>,
    row: &ScoreRow,
    from: usize,
    to: usize,
    cut: &Cut,
    begins: bool,
    indices: &mut Tensor<I>,
    rest: &mut Tensor<I>,
    memory: &mut Memory,
    #[comptime] splits: bool,
) {
    let units = comptime!(memory.units);
    let index = CUBE_POS_X as usize;
    let (heads, columns) = (scores.shape(1), scores.shape(2));
    let kept = row.low - row.first + (columns - row.high) + row.wanted as usize;
    let out = begin_output::<I>(indices, index, heads, kept, begins, units);
    let mut rest_out = 0usize.runtime();
    if comptime!(splits) {
        let others = columns - row.first - kept;
        rest_out = begin_output::<I>(rest, index, heads, others, begins, units);
    }
    let (last, left) = (cut.last, cut.left);
    let unit = UNIT_POS as usize;
    let stride = scores.stride(2);
    let out_stride = indices.stride(2);
    let rest_stride = rest.stride(2);
    let mut kept_before = cut.kept_before;
    let mut ties_before = cut.ties_before;
    let mut base = from;
    while base < to {
        #[unroll]
        for part in 0..comptime!(WORD / LOADS) {
            let of_part = base + part * comptime!(LOADS * units);
            // Short rows end long before the tile.
            if of_part < to {
                let mut bits = Array::<u32>::new(LOADS);
                #[unroll]
                for load in 0..LOADS {
                    let column = (of_part + load * units + unit).min(to - 1);
                    bits[load] = u32::reinterpret(scores[row.start + column * stride]);
                }
                #[unroll]
                for load in 0..LOADS {
                    let place = comptime!((part * LOADS + load) * units) + unit;
                    let column = base + place;
                    if column < to {
                        let order = order(bits[load]);
                        let chosen = column >= row.low && column < row.high;
                        let bit = 1u32 << u32::cast_from(place % WORD);
                        if !chosen || order < last {
                            memory.bins[place / WORD].fetch_add(bit);
                        } else if order == last {
                            memory.bins[units + place / WORD].fetch_add(bit);
                        }
                        if bits[load] & 0x7fff_ffff > 0x7f80_0000 {
                            memory.sums[1].fetch_add(1);
                        }
                    }
                }
            }
        }
        sync_cube();

        let kept_here = memory.bins[unit].load().count_ones();
        let ties_here = memory.bins[units + unit].load().count_ones();
        // A tile has 2^15 columns at most, so both counts fit one number.
        let both = kept_here | ties_here << 16;
        let before = inclusive_sum(&mut memory.scan, both, units) - both;
        let sums = comptime!(units.ilog2() as usize % 2 * units);
        let all = memory.scan[comptime!(sums + units - 1)];
        sync_cube();
        memory.scan[unit] = kept_before + (before & 0xffff);
        memory.scan[units + unit] = ties_before + (before >> 16);
        sync_cube();

        let parts = (to - base).div_ceil(units).min(WORD);
        for part in 0..parts {
            let place = part * units + unit;
            let word = place / WORD;
            let bit = u32::cast_from(place % WORD);
            let lower = (1u32 << bit) - 1;
            let kept = memory.bins[word].load();
            let ties = memory.bins[units + word].load();
            let ties_below = memory.scan[units + word] + (ties & lower).count_ones();
            let kept_below = memory.scan[word] + (kept & lower).count_ones();
            let is_kept = (kept >> bit) & 1 == 1;
            let is_tie = (ties >> bit) & 1 == 1 && ties_below < left;
            let kept_below = (kept_below + ties_below.min(left)) as usize;
            if is_kept || is_tie {
                indices[out + kept_below * out_stride] = I::cast_from(base + place);
            } else if comptime!(splits) && base + place < to {
                let column = base + place - row.first - kept_below;
                rest[rest_out + column * rest_stride] = I::cast_from(base + place);
            }
        }
        sync_cube();
        memory.bins[unit].store(0);
        memory.bins[units + unit].store(0);
        kept_before += all & 0xffff;
        ties_before += all >> 16;
        base += comptime!(WORD * units);
        sync_cube();
    }
}

/// Place from which `count` columns of a row are written, behind its padding; writes the padding if
/// `writes` is set.
#[cube]
fn begin_output<I: Int>(
    indices: &mut Tensor<I>,
    index: usize,
    heads: usize,
    count: usize,
    writes: bool,
    #[comptime] units: usize,
) -> usize {
    let stride = indices.stride(2);
    let start = index / heads * indices.stride(0) + index % heads * indices.stride(1);
    let padding = indices.shape(2) - count;
    if writes {
        let mut column = UNIT_POS as usize;
        while column < padding {
            indices[start + column * stride] = I::cast_from(0u32);
            column += units;
        }
    }
    start + padding * stride
}

/// See [`super::select`]. One cube per row of `scores`, `units` of them, a power of two.
#[cube(launch)]
pub(super) fn select<I: Int>(
    scores: &Tensor<f32>,
    rows: &Tensor<I>,
    indices: &mut Tensor<I>,
    rest: &mut Tensor<I>,
    nan: &mut Tensor<I>,
    #[comptime] splits: bool,
    #[comptime] units: usize,
    #[define(I)] _type: ElemType,
) {
    let unit = UNIT_POS as usize;
    let index = CUBE_POS_X as usize;
    let row = read_row::<I>(scores, rows, index);
    let columns = scores.shape(2);
    let mut memory = new_memory(units);
    if unit == 0 {
        memory.found[0] = 0;
        memory.found[1] = row.wanted;
        memory.sums[1].store(0);
    }
    sync_cube();

    // The order of the last score kept, a digit more with each pass.
    let mut last = 0u32;
    let mut left = row.wanted;
    let per_unit = comptime!(BINS / units);
    #[unroll]
    for pass in 0..PASSES {
        count_digits(scores, &row, row.low, row.high, last, &memory, pass);
        sync_cube();
        let mut counts = Array::<u32>::new(per_unit);
        #[unroll]
        for bin in 0..per_unit {
            counts[bin] = memory.bins[unit * per_unit + bin].load();
        }
        find_digit(&counts, &counts, left, &mut memory);
        clear_bins(&memory);
        sync_cube();
        last = (last << comptime!(digit(pass).0)) | memory.found[0];
        left = memory.found[1];
    }

    let cut = Cut { last, left, kept_before: 0u32, ties_before: 0u32 };
    write_columns::<I>(
        scores,
        &row,
        row.first,
        columns,
        &cut,
        true,
        indices,
        rest,
        &mut memory,
        splits,
    );
    if unit == 0 {
        let place = index * nan.stride(0);
        nan[place] = I::cast_from(memory.sums[1].load());
    }
}

/// One pass of [`select`] where several cubes share a row: cubes along x are rows, those along y
/// parts of `part` columns.
///
/// Each finds the digit of the pass before from the `counts` of all parts, `[rows, parts, BINS]`,
/// and counts the scores of its part by their next digit; behind the last pass it writes the
/// columns of its part. In between a cube leaves for the same cube of the next pass the digits so
/// far, how many are left, and how many are kept in the parts before: `[rows, parts, 3]`.
#[cube(launch)]
pub(super) fn select_pass<I: Int>(
    scores: &Tensor<f32>,
    rows: &Tensor<I>,
    counts: &Tensor<u32>,
    state: &Tensor<u32>,
    next_counts: &mut Tensor<u32>,
    next_state: &mut Tensor<u32>,
    indices: &mut Tensor<I>,
    rest: &mut Tensor<I>,
    nan: &mut Tensor<I>,
    part: usize,
    #[comptime] pass: usize,
    #[comptime] splits: bool,
    #[comptime] units: usize,
    #[define(I)] _type: ElemType,
) {
    let unit = UNIT_POS as usize;
    let index = CUBE_POS_X as usize;
    let of_parts = CUBE_POS_Y as usize;
    let row = read_row::<I>(scores, rows, index);
    let columns = scores.shape(2);
    let mut memory = new_memory(units);
    if unit == 0 {
        memory.found[0] = 0;
        memory.found[1] = row.wanted;
        memory.found[2] = 0;
        memory.sums[0].store(0);
        memory.sums[1].store(0);
    }
    sync_cube();

    let mut last = 0u32;
    let mut left = row.wanted;
    let mut kept_before = 0u32;
    let per_unit = comptime!(BINS / units);
    if comptime!(pass > 0) {
        if comptime!(pass > 1) {
            let of_state = index * state.stride(0) + of_parts * state.stride(1);
            last = state[of_state];
            left = state[of_state + state.stride(2)];
            kept_before = state[of_state + 2 * state.stride(2)];
        }
        let mut all = Array::<u32>::new(per_unit);
        let mut before = Array::<u32>::new(per_unit);
        #[unroll]
        for bin in 0..per_unit {
            all[bin] = 0;
            before[bin] = 0;
        }
        let parts = counts.shape(1);
        for other in 0..parts {
            let of_bins = index * counts.stride(0) + other * counts.stride(1);
            #[unroll]
            for bin in 0..per_unit {
                let count = counts[of_bins + (unit * per_unit + bin) * counts.stride(2)];
                all[bin] += count;
                if other < of_parts {
                    before[bin] += count;
                }
            }
        }
        find_digit(&all, &before, left, &mut memory);
        sync_cube();
        let digit_before = memory.found[0];
        let mut kept = 0u32;
        #[unroll]
        for bin in 0..per_unit {
            if u32::cast_from(unit * per_unit + bin) < digit_before {
                kept += before[bin];
            }
        }
        if kept > 0 {
            memory.sums[0].fetch_add(kept);
        }
        sync_cube();
        kept_before += memory.sums[0].load();
        let bits = comptime!(if pass > 0 { digit(pass - 1).0 } else { 0 });
        last = (last << bits) | digit_before;
        left = memory.found[1];
    }

    let from = (of_parts * part).max(row.first);
    let to = (of_parts * part + part).min(columns);
    if comptime!(pass < PASSES) {
        let low = from.max(row.low);
        let high = to.min(row.high);
        count_digits(scores, &row, low, high, last, &memory, pass);
        sync_cube();
        let of_bins = index * next_counts.stride(0) + of_parts * next_counts.stride(1);
        let bin_stride = next_counts.stride(2);
        #[unroll]
        for bin in 0..per_unit {
            let bin = bin * units + unit;
            next_counts[of_bins + bin * bin_stride] = memory.bins[bin].load();
        }
        if unit == 0 {
            let stride = next_state.stride(2);
            let of_state = index * next_state.stride(0) + of_parts * next_state.stride(1);
            next_state[of_state] = last;
            next_state[of_state + stride] = left;
            next_state[of_state + 2 * stride] = kept_before;
        }
    } else {
        // Protected columns of the parts before.
        let here = from.min(columns);
        let protected = here.min(row.low) - row.first + (here - here.min(row.high));
        kept_before += u32::cast_from(protected);
        let ties_before = memory.found[2];
        let cut = Cut { last, left, kept_before, ties_before };
        let begins = of_parts == 0;
        write_columns::<I>(
            scores,
            &row,
            from,
            to,
            &cut,
            begins,
            indices,
            rest,
            &mut memory,
            splits,
        );
        if unit == 0 {
            let place = index * nan.stride(0) + of_parts * nan.stride(1);
            nan[place] = I::cast_from(memory.sums[1].load());
        }
    }
}
