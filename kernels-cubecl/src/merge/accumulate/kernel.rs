// A kernel takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use cubecl::prelude::*;

/// Rows sorted by one cube.
pub(super) const CHUNK: usize = 1024;
/// Units of a cube that sorts.
pub(super) const SORTERS: usize = 256;
/// Units of a cube that adds: a plane on most devices.
pub(super) const ADDERS: usize = 32;
/// Rows whose numbers are on their way at the same time.
const IN_FLIGHT: usize = 8;
/// The key of a row that is added nowhere; behind all others.
const DROPPED: u32 = u32::MAX;

/// Sorts the rows of each chunk by their bucket, which is their first slot moved up by `span - 1`
/// so that none is negative: `keys[head, chunk, place]` is the bucket and, in the last bits, the
/// row in the chunk. `starts[head, chunk, bin]` is the first place of each bin of `of_bin` buckets,
/// and behind the last bin the end.
#[cube(launch)]
pub(super) fn sort<I: Int>(
    weights: &Tensor<f32>,
    slot: &Tensor<I>,
    keys: &mut Tensor<u32>,
    starts: &mut Tensor<u32>,
    heads: usize,
    span: usize,
    buckets: usize,
    of_bin: usize,
    bins: usize,
    #[define(I)] _type: ElemType,
) {
    let unit = UNIT_POS as usize;
    let chunk = CUBE_POS_X as usize;
    let batch = CUBE_POS_Y as usize / heads;
    let head = CUBE_POS_Y as usize % heads;
    let rows = slot.shape(2);
    let slot_start = batch * slot.stride(0) + head * slot.stride(1);
    let weight_start = batch * weights.stride(0) + head * weights.stride(1);

    let mut sorted = Shared::<[u32]>::new_slice(CHUNK);
    for step in 0..comptime!(CHUNK / SORTERS) {
        let place = step * SORTERS + unit;
        let row = chunk * CHUNK + place;
        let mut key = DROPPED.runtime();
        if row < rows {
            let bucket =
                i32::cast_from(slot[slot_start + row * slot.stride(2)]) + (span as i32 - 1);
            let weight = weights[weight_start + row * weights.stride(2)];
            if weight != 0.0 && bucket >= 0 && bucket < buckets as i32 {
                key = (bucket as u32) * CHUNK as u32 + place as u32;
            }
        }
        sorted[place] = key;
    }
    sync_cube();

    // A bitonic sort; keys differ, so the order is one.
    let levels = comptime!(CHUNK.ilog2() as usize);
    for level in 1..levels + 1 {
        for passed in 0..level {
            let distance = 1 << (level - 1 - passed);
            for step in 0..comptime!(CHUNK / 2 / SORTERS) {
                let pair = step * SORTERS + unit;
                let low = (pair / distance) * 2 * distance + pair % distance;
                let high = low + distance;
                let falls = (low >> level) & 1 == 1;
                let (a, b) = (sorted[low], sorted[high]);
                let (least, most) = (a.min(b), a.max(b));
                sorted[low] = select(falls, most, least);
                sorted[high] = select(falls, least, most);
            }
            sync_cube();
        }
    }

    let list = CUBE_POS_Y as usize * keys.stride(0) + chunk * keys.stride(1);
    for step in 0..comptime!(CHUNK / SORTERS) {
        let place = step * SORTERS + unit;
        let at = list + place * keys.stride(2);
        keys[at] = sorted[place];
    }
    let table = CUBE_POS_Y as usize * starts.stride(0) + chunk * starts.stride(1);
    let mut bin = unit;
    while bin <= bins {
        // Where the first key of the bin, or of one behind it, stands.
        let first = (bin * of_bin * CHUNK) as u32;
        let mut from = 0_usize.runtime();
        let mut to = CHUNK.runtime();
        while from < to {
            let middle = (from + to) / 2;
            let key = sorted[middle];
            if key < first || (bin == bins && key != DROPPED) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        let at = table + bin * starts.stride(2);
        starts[at] = from as u32;
        bin += SORTERS;
    }
}

/// Adds the rows of a bin that some chunks hold: `parts[part, head, bucket, channel]`.
///
/// Each unit owns some channels of every bucket, so that no two units add to the same sum and rows
/// are added in their order.
#[cube(launch)]
pub(super) fn add<X: Float, N: Size>(
    x: &Tensor<Vector<X, N>>,
    weights: &Tensor<f32>,
    keys: &Tensor<u32>,
    starts: &Tensor<u32>,
    parts: &mut Tensor<Vector<f32, N>>,
    heads: usize,
    chunks_of_part: usize,
    buckets: usize,
    #[comptime] of_bin: usize,
    #[comptime] channels: usize,
    #[define(X)] _type: ElemType,
) {
    let unit = UNIT_POS as usize;
    let bin = CUBE_POS_X as usize;
    let part = CUBE_POS_Y as usize;
    let list = CUBE_POS_Z as usize;
    let batch = list / heads;
    let head = list % heads;
    let vector = x.vector_size();
    // Vectors of a row, and how many of them a unit owns.
    let vectors = comptime!(channels / vector);
    let own = comptime!(vectors.div_ceil(ADDERS));
    let in_flight = comptime!((IN_FLIGHT / own).max(1));
    let x_start = batch * x.stride(0) + head * x.stride(1);
    let weight_start = batch * weights.stride(0) + head * weights.stride(1);
    let chunks = starts.shape(1);
    let first_chunk = part * chunks_of_part;
    let end_chunk = (first_chunk + chunks_of_part).min(chunks);

    let mut sums = Shared::<[Vector<f32, N>]>::new_slice(comptime!(of_bin * vectors));
    let mut counts = Shared::<[u32]>::new_slice(ADDERS);
    let mut rows = Shared::<[u32]>::new_slice(ADDERS);
    let mut places = Shared::<[u32]>::new_slice(ADDERS);
    let mut factors = Shared::<[f32]>::new_slice(ADDERS);
    for bucket in 0..of_bin {
        for index in 0..own {
            let at = index * ADDERS + unit;
            if at < vectors {
                sums[bucket * vectors + at] = Vector::new(0.0);
            }
        }
    }

    let mut base_chunk = first_chunk;
    while base_chunk < end_chunk {
        let chunk = base_chunk + unit;
        let mut count = 0_u32.runtime();
        if chunk < end_chunk {
            let table = list * starts.stride(0) + chunk * starts.stride(1);
            count = starts[table + (bin + 1) * starts.stride(2)]
                - starts[table + bin * starts.stride(2)];
        }
        counts[unit] = count;
        sync_cube();
        let mut total = 0_u32.runtime();
        for other in 0..ADDERS {
            total += counts[other];
        }

        // The rows of these chunks one after another, as many at a time as there are units.
        let mut base = 0_u32.runtime();
        while base < total {
            let wanted = base + UNIT_POS;
            if wanted < total {
                let mut before = 0_u32.runtime();
                let mut holder = 0_usize.runtime();
                while before + counts[holder] <= wanted {
                    before += counts[holder];
                    holder += 1;
                }
                let chunk = base_chunk + holder;
                let table = list * starts.stride(0) + chunk * starts.stride(1);
                let place = starts[table + bin * starts.stride(2)] + (wanted - before);
                let key = keys[list * keys.stride(0)
                    + chunk * keys.stride(1)
                    + place as usize * keys.stride(2)];
                let row = chunk * CHUNK + key as usize % CHUNK;
                rows[unit] = row as u32;
                places[unit] = (key as usize / CHUNK - bin * of_bin) as u32;
                factors[unit] = weights[weight_start + row * weights.stride(2)];
            }
            sync_cube();
            let count = ((total - base) as usize).min(ADDERS);
            let mut next = 0_usize.runtime();
            while next < count {
                let mut loaded = Array::<Vector<f32, N>>::new(comptime!(in_flight * own));
                #[unroll]
                for ahead in 0..in_flight {
                    // Behind the last row the last is loaded again, and not added.
                    let row = rows[(next + ahead).min(count - 1)] as usize;
                    let row_start = x_start + row * x.stride(2);
                    #[unroll]
                    for index in 0..own {
                        let at = (index * ADDERS + unit).min(vectors - 1);
                        let numbers = x[(row_start + at * vector * x.stride(3)) / vector];
                        loaded[ahead * own + index] = Vector::cast_from(numbers);
                    }
                }
                #[unroll]
                for ahead in 0..in_flight {
                    if next + ahead < count {
                        let factor = Vector::new(factors[next + ahead]);
                        let start = places[next + ahead] as usize * vectors;
                        #[unroll]
                        for index in 0..own {
                            let at = index * ADDERS + unit;
                            if at < vectors {
                                sums[start + at] += loaded[ahead * own + index] * factor;
                            }
                        }
                    }
                }
                next += in_flight;
            }
            sync_cube();
            base += ADDERS as u32;
        }
        sync_cube();
        base_chunk += ADDERS;
    }

    for place in 0..of_bin {
        let bucket = bin * of_bin + place;
        if bucket < buckets {
            let start = part * parts.stride(0) + list * parts.stride(1) + bucket * parts.stride(2);
            #[unroll]
            for index in 0..own {
                let at = index * ADDERS + unit;
                if at < vectors {
                    parts[start / vector + at] = sums[place * vectors + at];
                }
            }
        }
    }
}

/// Adds up the parts of the buckets of each slot, in their order: one unit a number of the output.
#[cube(launch)]
pub(super) fn merge(
    parts: &Tensor<f32>,
    output: &mut Tensor<f32>,
    span: usize,
    #[comptime] units: usize,
) {
    let (heads, slots, channels) = (output.shape(1), output.shape(2), output.shape(3));
    let list = CUBE_POS_Y as usize;
    let place = CUBE_POS_X as usize * units + UNIT_POS as usize;
    let slot = place / channels;
    let channel = place % channels;
    if slot < slots {
        let mut sum = f32::new(0.0);
        for step in 0..span {
            // A slot is added to by the rows sent to it, and to those up to `span - 1` before it.
            let start = list * parts.stride(1)
                + (slot + step) * parts.stride(2)
                + channel * parts.stride(3);
            for part in 0..parts.shape(0) {
                sum += parts[start + part * parts.stride(0)];
            }
        }
        let at = (list / heads) * output.stride(0)
            + (list % heads) * output.stride(1)
            + slot * output.stride(2)
            + channel * output.stride(3);
        output[at] = sum;
    }
}
