use cubecl::prelude::*;

use super::operands::{Packed, PageInputs};
use crate::attention::decode::split::{
    Heads, Running, SplitCounts, UNITS, cube_split, fill_weights, write_head,
};

/// Most numbers of the queries of a cube in shared memory.
const MOST_QUERIES: usize = 1024;
/// Most scores of a head in a tile.
pub(super) const MOST_SCORES: usize = 512;
/// Sums of products that one unit keeps in registers.
const SUMS_A_UNIT: usize = 64;

/// Compile-time parameters of the portable kernels over pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PageBlueprint {
    pub(super) head_dim: usize,
    /// Query heads of a cube, which share its pages.
    pub(super) heads: usize,
    /// Cubes that the query heads of one kv head need.
    pub(super) blocks: usize,
    /// Bits per number.
    pub(super) bits: usize,
    /// Tokens per page.
    pub(super) group: usize,
    /// Tokens of a place of a tile: those of a page, or one.
    pub(super) place: usize,
    /// Places of a tile.
    pub(super) places: usize,
    /// Units that share the scores of the tokens of one word, or of one token.
    pub(super) lanes: usize,
    /// Units that share the values of one token.
    pub(super) value_lanes: usize,
    /// Words of a value per lane.
    pub(super) value_words: usize,
    /// Channels that share a scale in a value.
    pub(super) value_group: usize,
    /// Numbers that parts of scores are put together in.
    pub(super) parts: usize,
    /// Whether weights are wanted.
    pub(super) wanted: bool,
}

impl PageBlueprint {
    /// For levels of `bits` bits, whose values have so many groups of channels.
    pub(super) fn levels(
        heads: Heads,
        bits: usize,
        group: usize,
        value_groups: usize,
        wanted: bool,
    ) -> Self {
        let head_dim = heads.head_dim;
        let word = 32 / bits;
        let pages = (UNITS / group).max(1);
        let most = (SUMS_A_UNIT / word)
            .min(MOST_QUERIES / head_dim)
            .min(MOST_SCORES / (pages * group))
            .max(1);
        let (of_cube, blocks) = heads.blocks(most);
        let jobs = (pages * group / word).min(UNITS);
        let lanes = (UNITS / jobs + 1).next_power_of_two() / 2;
        let row = head_dim.div_ceil(word);
        let value_lanes = row.min(UNITS);
        Self {
            head_dim,
            heads: of_cube,
            blocks,
            bits,
            group,
            place: group,
            places: pages,
            lanes,
            value_lanes,
            value_words: row.div_ceil(value_lanes),
            value_group: head_dim / value_groups,
            parts: UNITS * (word + 1),
            wanted,
        }
    }

    /// Numbers of a word.
    fn word(&self) -> usize {
        32 / self.bits
    }

    /// Number of tokens in a tile.
    pub(super) fn tile(&self) -> usize {
        self.places * self.place
    }

    /// Pages that a tile reaches over, at least one.
    pub(super) fn pages(&self) -> usize {
        self.tile().div_ceil(self.group)
    }

    /// Number of words of a value.
    fn row(&self) -> usize {
        self.head_dim.div_ceil(self.word())
    }

    /// Number of tokens whose values are added at once.
    pub(super) fn value_rows(&self) -> usize {
        UNITS / self.value_lanes
    }

    /// Size of the scratch that parts of scores and sums are put together in, in numbers.
    pub(super) fn scratch(&self) -> usize {
        self.parts.max(self.value_rows() * (self.head_dim + 1))
    }

    /// Size of the shared memory, in bytes, without that of queries.
    #[cfg(test)]
    pub(super) fn shared_bytes(&self) -> usize {
        4 * (self.scratch() + self.heads * (2 * self.tile() + 8) + self.places)
    }
}

/// Level `place` of a word.
///
/// Its bits become the last of a float of 2^23, from which that is taken off: exact, and quicker
/// than a conversion.
#[cube]
fn level(word: u32, #[comptime] place: usize, #[comptime] bits: usize) -> f32 {
    let shift = comptime!((place * bits) as u32);
    let mask = comptime!((1_u32 << bits) - 1);
    f32::reinterpret(((word >> shift) & mask) | 0x4b00_0000_u32) - f32::new(8_388_608.0)
}

/// Loads the lane's words of the value of one token of the tile, with scale and minimum of each. A
/// lane behind the last word loads that one, and its sums are not written.
#[cube]
fn load_value<K: Float, W: Int>(
    values: &Packed<W, K>,
    page_of: &Shared<[u32]>,
    token: usize,
    words: &mut Array<u32>,
    steps: &mut Array<f32>,
    leasts: &mut Array<f32>,
    #[comptime] blueprint: PageBlueprint,
) {
    let lane = UNIT_POS as usize % blueprint.value_lanes;
    let row_words = comptime!(blueprint.row());
    let groups = comptime!(blueprint.head_dim / blueprint.value_group);
    let page = page_of[token / blueprint.group] as usize;
    let row = token % blueprint.group;
    #[unroll]
    for vector in 0..blueprint.value_words {
        let at = (lane + vector * blueprint.value_lanes).min(row_words - 1);
        let line = row * groups + at * comptime!(blueprint.word()) / blueprint.value_group;
        let place = page * values.words.stride(0) + row * row_words + at;
        words[vector] = u32::cast_from(values.words[place]);
        steps[vector] = f32::cast_from(values.scale[page * values.scale.stride(0) + line]);
        leasts[vector] = f32::cast_from(values.min[page * values.min.stride(0) + line]);
    }
}

/// One split of the pages of one kv head, for up to `blueprint.heads` of its query heads. Numbers
/// of a page are contiguous.
#[cube(launch)]
pub(super) fn pages<Q: Float, K: Float, I: Int, W: Int>(
    inputs: &PageInputs<Q, I>,
    keys: &Packed<W, K>,
    values: &Packed<W, K>,
    parts: &mut Tensor<f32>,
    weights: &mut Tensor<f32>,
    counts: &SplitCounts,
    #[comptime] blueprint: PageBlueprint,
    #[define(Q, K, I, W)] _types: [ElemType; 4],
) {
    let unit = UNIT_POS as usize;
    let PageBlueprint { heads, bits, group, .. } = blueprint;
    let cube = cube_split(&*weights, counts, heads, blueprint.blocks);
    let word = comptime!(blueprint.word());
    let tile = comptime!(blueprint.tile());
    let words = comptime!(group / word);
    let value_rows = comptime!(blueprint.value_rows());
    let pitch = comptime!(word + 1);
    let row = comptime!(blueprint.head_dim + 1);

    // `[head_dim, heads]`
    let mut query = Shared::<[f32]>::new_slice(comptime!(blueprint.head_dim * heads));
    let mut page_of = Shared::<[u32]>::new_slice(blueprint.places);
    // `[heads, tile]`
    let mut scores = Shared::<[f32]>::new_slice(comptime!(heads * tile));
    // `[tile, heads]`
    let mut shares = Shared::<[f32]>::new_slice(comptime!(heads * tile));
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(blueprint.scratch()));
    let mut running = Running::new(heads);

    let queries = &inputs.queries;
    let mut index = unit;
    while index < comptime!(blueprint.head_dim * heads) {
        let channel = index / heads;
        // The last cube of a kv head may have fewer heads: it works on one twice.
        let head = cube.query_head + (index % heads).min(cube.heads_left - 1);
        let place =
            cube.batch * queries.stride(0) + head * queries.stride(1) + channel * queries.stride(3);
        query[index] = f32::cast_from(queries[place]) * inputs.scoring.scale;
        index += UNITS;
    }

    let numbers = comptime!(heads * blueprint.value_words * word);
    let mut sums = zeros(numbers);
    let mut least_sums = zeros(comptime!(heads * blueprint.value_words));
    let mut weight_sums = zeros(heads);

    let offsets = &inputs.offsets;
    let padding = &inputs.tail_padding;
    let first = usize::cast_from(offsets[cube.kv * offsets.stride(0)]);
    let own = usize::cast_from(offsets[(cube.kv + 1) * offsets.stride(0)]) - first;
    let total = own * group + inputs.tail - usize::cast_from(padding[cube.kv * padding.stride(0)]);
    if blueprint.wanted && cube.split == 0 {
        fill_weights(weights, cube.weight_start, cube.heads_left, inputs.columns - total, heads);
    }
    let to = (cube.split * inputs.share + inputs.share).min(own);
    let mut base = cube.split * inputs.share;
    while base < to {
        let held = (to - base).min(blueprint.places);
        let count = held * group;
        if unit < held {
            page_of[unit] =
                u32::cast_from(inputs.list[(first + base + unit) * inputs.list.stride(0)]);
        }
        sync_cube();

        // Scores: the tokens of one word of a channel at once, channels shared between lanes. What
        // a level is multiplied by and what is added to it are taken into the query.
        let jobs = comptime!(blueprint.places * words);
        let at_once = comptime!(UNITS / blueprint.lanes);
        let lane = unit % blueprint.lanes;
        for pass in 0..comptime!(jobs.div_ceil(at_once)) {
            let job = pass * at_once + unit / blueprint.lanes;
            let mut products = Array::<f32>::new(comptime!(heads * word));
            #[unroll]
            for place in 0..comptime!(heads * word) {
                products[place] = f32::new(0.0);
            }
            if job / words < held {
                let page = page_of[job / words] as usize;
                let mut least_products = Array::<f32>::new(heads);
                #[unroll]
                for head in 0..heads {
                    least_products[head] = f32::new(0.0);
                }
                let words_start = page * keys.words.stride(0) + job % words;
                let scale_start = page * keys.scale.stride(0);
                let min_start = page * keys.min.stride(0);
                // A word and its line are loaded while those of the channel before are worked on.
                let mut channel = lane;
                let at = channel.min(comptime!(blueprint.head_dim - 1));
                let mut next_word = u32::cast_from(keys.words[words_start + at * words]);
                let mut next_step = f32::cast_from(keys.scale[scale_start + at]);
                let mut next_least = f32::cast_from(keys.min[min_start + at]);
                while channel < blueprint.head_dim {
                    let packed = next_word;
                    let step = next_step;
                    let least = next_least;
                    let at = (channel + blueprint.lanes).min(comptime!(blueprint.head_dim - 1));
                    next_word = u32::cast_from(keys.words[words_start + at * words]);
                    next_step = f32::cast_from(keys.scale[scale_start + at]);
                    next_least = f32::cast_from(keys.min[min_start + at]);
                    let mut steps = Array::<f32>::new(heads);
                    #[unroll]
                    for head in 0..heads {
                        let number = query[channel * heads + head];
                        least_products[head] += number * least;
                        steps[head] = number * step;
                    }
                    #[unroll]
                    for place in 0..word {
                        let level = level(packed, place, bits);
                        #[unroll]
                        for head in 0..heads {
                            products[comptime!(head * word + place)] += steps[head] * level;
                        }
                    }
                    channel += blueprint.lanes;
                }
                #[unroll]
                for head in 0..heads {
                    #[unroll]
                    for place in 0..word {
                        products[comptime!(head * word + place)] += least_products[head];
                    }
                }
            }
            #[unroll]
            for head in 0..heads {
                #[unroll]
                for place in 0..word {
                    scratch[unit * pitch + place] = products[comptime!(head * word + place)];
                }
                sync_cube();
                let mut index = unit;
                while index < comptime!(at_once * word) {
                    let job = pass * at_once + index / word;
                    if job / words < held {
                        let mut score = f32::new(0.0);
                        let start = index / word * blueprint.lanes * pitch + index % word;
                        for lane in 0..blueprint.lanes {
                            score += scratch[start + lane * pitch];
                        }
                        let score = inputs.scoring.capped(score);
                        let token = job * word + index % word;
                        scores[head * tile + token] = score;
                        if blueprint.wanted && head < cube.heads_left {
                            let column = inputs.columns - total + base * group + token;
                            let place = cube.weight_start
                                + head * weights.stride(1)
                                + column * weights.stride(2);
                            weights[place] = score;
                        }
                    }
                    index += UNITS;
                }
                sync_cube();
            }
        }

        running.weigh(&scores, &mut shares, count, heads, tile);

        #[unroll]
        for head in 0..heads {
            let kept = running.kept[head];
            weight_sums[head] *= kept;
            #[unroll]
            for vector in 0..blueprint.value_words {
                let at = comptime!(head * blueprint.value_words + vector);
                least_sums[at] *= kept;
                #[unroll]
                for place in 0..word {
                    let at = comptime!(at * word + place);
                    sums[at] *= kept;
                }
            }
        }
        let mut token = unit / blueprint.value_lanes;
        // Units behind the last whole row have nothing to add.
        if token >= value_rows {
            token = count;
        }
        // As of keys, the next words are loaded while these are worked on.
        let mut next_words = Array::<u32>::new(blueprint.value_words);
        let mut next_steps = Array::<f32>::new(blueprint.value_words);
        let mut next_leasts = Array::<f32>::new(blueprint.value_words);
        load_value::<K, W>(
            values,
            &page_of,
            token.min(count - 1),
            &mut next_words,
            &mut next_steps,
            &mut next_leasts,
            blueprint,
        );
        while token < count {
            let mut packed = Array::<u32>::new(blueprint.value_words);
            let mut line = Array::<f32>::new(comptime!(2 * blueprint.value_words));
            #[unroll]
            for vector in 0..blueprint.value_words {
                packed[vector] = next_words[vector];
                line[comptime!(2 * vector)] = next_steps[vector];
                line[comptime!(2 * vector + 1)] = next_leasts[vector];
            }
            load_value::<K, W>(
                values,
                &page_of,
                (token + value_rows).min(count - 1),
                &mut next_words,
                &mut next_steps,
                &mut next_leasts,
                blueprint,
            );
            #[unroll]
            for vector in 0..blueprint.value_words {
                let mut steps = Array::<f32>::new(heads);
                #[unroll]
                for head in 0..heads {
                    let share = shares[token * heads + head];
                    if comptime!(vector == 0) {
                        weight_sums[head] += share;
                    }
                    let at = comptime!(head * blueprint.value_words + vector);
                    least_sums[at] += share * line[comptime!(2 * vector + 1)];
                    steps[head] = share * line[comptime!(2 * vector)];
                }
                #[unroll]
                for place in 0..word {
                    let level = level(packed[vector], place, bits);
                    #[unroll]
                    for head in 0..heads {
                        let at = comptime!((head * blueprint.value_words + vector) * word + place);
                        sums[at] += steps[head] * level;
                    }
                }
            }
            token += value_rows;
        }
        sync_cube();
        base += blueprint.places;
    }

    let lane = unit % blueprint.value_lanes;
    let slot = unit / blueprint.value_lanes;
    #[unroll]
    for head in 0..heads {
        // The scratch is still read from.
        sync_cube();
        if slot < value_rows {
            #[unroll]
            for vector in 0..blueprint.value_words {
                let at = lane + vector * blueprint.value_lanes;
                let of_word = comptime!(head * blueprint.value_words + vector);
                #[unroll]
                for place in 0..word {
                    let channel = at * word + place;
                    if channel < blueprint.head_dim {
                        scratch[slot * row + channel] =
                            sums[comptime!(of_word * word + place)] + least_sums[of_word];
                    }
                }
            }
            if lane == 0 {
                scratch[slot * row + blueprint.head_dim] = weight_sums[head];
            }
        }
        sync_cube();
        if head < cube.heads_left {
            let highest = running.highest[head];
            let own = cube.batch * counts.query_heads + cube.query_head + head;
            write_head(parts, &scratch, highest, cube.split, own, blueprint.head_dim, value_rows);
        }
    }
}

/// Array of zeros.
#[cube]
pub(super) fn zeros(#[comptime] count: usize) -> Array<f32> {
    let mut all = Array::<f32>::new(count);
    #[unroll]
    for place in 0..count {
        all[place] = f32::new(0.0);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WebGPU grants 16 KiB.
    #[test]
    fn tiles_fit_into_shared_memory() {
        for head_dim in 1..=1024 {
            for query_heads in [1, 3, 4, 7, 8, 32] {
                let heads = Heads { batch: 1, query_heads, kv_heads: 1, head_dim };
                for (bits, group) in
                    [(1, 32), (1, 128), (2, 16), (2, 512), (4, 24), (4, 32), (8, 4), (8, 128)]
                {
                    let blueprint = PageBlueprint::levels(heads, bits, group, 1, true);
                    let queries = 4 * blueprint.heads * head_dim;
                    assert!(blueprint.shared_bytes() + queries <= 16384, "{blueprint:?}");
                    assert!(blueprint.lanes.is_power_of_two() && blueprint.lanes <= UNITS);
                    assert!(blueprint.heads * blueprint.blocks >= query_heads);
                }
                for widest in [1, 2, 4, 8] {
                    if head_dim > 256 || !head_dim.div_ceil(4).is_multiple_of(widest) {
                        continue;
                    }
                    let blueprint = PageBlueprint::fp8(heads, 32, widest, true);
                    assert!(blueprint.shared_bytes() <= 16384, "{blueprint:?}");
                    assert!(blueprint.places > 0 && blueprint.lanes <= UNITS, "{blueprint:?}");
                    assert!(blueprint.heads * blueprint.blocks >= query_heads);
                }
            }
        }
    }
}
