use cubecl::prelude::*;

use crate::attention::decode::split::{Running, UNITS, cube_split, fill_weights, write_head};

/// Compile-time parameters of the portable kernel over pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct QuantizedBlueprint {
    pub(super) head_dim: usize,
    /// Query heads of a cube, which share its pages.
    pub(super) heads: usize,
    /// Cubes that the query heads of one kv head need.
    pub(super) blocks: usize,
    /// Bits per number.
    pub(super) bits: usize,
    /// Tokens per page.
    pub(super) group: usize,
    /// Channels that share a scale in a value.
    pub(super) value_group: usize,
    /// Pages of a tile.
    pub(super) pages: usize,
    /// Units that share the scores of the tokens of one word.
    pub(super) lanes: usize,
    /// Units that share the values of one token.
    pub(super) value_lanes: usize,
    /// Words of a value per lane.
    pub(super) value_words: usize,
    /// Whether weights are wanted.
    pub(super) wanted: bool,
}

impl QuantizedBlueprint {
    /// Number of levels in a word.
    pub(super) fn word(&self) -> usize {
        32 / self.bits
    }

    /// Number of tokens in a tile.
    pub(super) fn tile(&self) -> usize {
        self.pages * self.group
    }

    /// Number of words for the tokens of one channel of a page.
    fn words(&self) -> usize {
        self.group / self.word()
    }

    /// Number of words of a value.
    fn row(&self) -> usize {
        self.head_dim.div_ceil(self.word())
    }

    /// Number of tokens whose values are added at once.
    fn value_rows(&self) -> usize {
        UNITS / self.value_lanes
    }

    /// Size of the scratch that parts of scores and sums are put together in, in numbers.
    fn scratch(&self) -> usize {
        (UNITS * (self.word() + 1)).max(self.value_rows() * (self.head_dim + 1))
    }

    /// Size of the shared memory, in bytes.
    #[cfg(test)]
    pub(super) fn shared_bytes(&self) -> usize {
        let of_heads = 2 * self.tile() + self.head_dim + 8;
        4 * (self.scratch() + self.heads * of_heads + self.pages)
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
    value_words: &Tensor<W>,
    value_scale: &Tensor<K>,
    value_min: &Tensor<K>,
    page_of: &Shared<[u32]>,
    token: usize,
    words: &mut Array<u32>,
    steps: &mut Array<f32>,
    leasts: &mut Array<f32>,
    #[comptime] blueprint: QuantizedBlueprint,
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
        let place = page * value_words.stride(0) + row * row_words + at;
        words[vector] = u32::cast_from(value_words[place]);
        steps[vector] = f32::cast_from(value_scale[page * value_scale.stride(0) + line]);
        leasts[vector] = f32::cast_from(value_min[page * value_min.stride(0) + line]);
    }
}

/// One split of the pages of one kv head, for up to `blueprint.heads` of its query heads. Numbers
/// of a page are contiguous.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn pages<Q: Float, K: Float, I: Int, W: Int>(
    queries: &Tensor<Q>,
    key_words: &Tensor<W>,
    key_scale: &Tensor<K>,
    key_min: &Tensor<K>,
    value_words: &Tensor<W>,
    value_scale: &Tensor<K>,
    value_min: &Tensor<K>,
    list: &Tensor<I>,
    offsets: &Tensor<I>,
    padding: &Tensor<I>,
    parts: &mut Tensor<f32>,
    weights: &mut Tensor<f32>,
    query_heads: usize,
    kv_heads: usize,
    columns: usize,
    tail: usize,
    chunk: usize,
    splits: usize,
    scale: f32,
    #[comptime] blueprint: QuantizedBlueprint,
    #[define(Q, K, I, W)] _types: [ElemType; 4],
) {
    let unit = UNIT_POS as usize;
    let cube =
        cube_split(&*weights, query_heads, kv_heads, splits, blueprint.heads, blueprint.blocks);

    let heads = blueprint.heads;
    let bits = blueprint.bits;
    let group = blueprint.group;
    let word = comptime!(blueprint.word());
    let tile = comptime!(blueprint.tile());
    let words = comptime!(blueprint.words());
    let value_rows = comptime!(blueprint.value_rows());
    let pitch = comptime!(word + 1);
    let row = comptime!(blueprint.head_dim + 1);

    // `[head_dim, heads]`
    let mut query = Shared::<[f32]>::new_slice(comptime!(blueprint.head_dim * heads));
    let mut page_of = Shared::<[u32]>::new_slice(blueprint.pages);
    // `[heads, tile]`
    let mut scores = Shared::<[f32]>::new_slice(comptime!(heads * tile));
    // `[tile, heads]`
    let mut shares = Shared::<[f32]>::new_slice(comptime!(heads * tile));
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(blueprint.scratch()));
    let mut running = Running::new(heads);

    let mut index = unit;
    while index < comptime!(blueprint.head_dim * heads) {
        let channel = index / heads;
        // The last cube of a kv head may have fewer heads: it works on one twice.
        let head = cube.query_head + (index % heads).min(cube.heads_left - 1);
        let place =
            cube.batch * queries.stride(0) + head * queries.stride(1) + channel * queries.stride(3);
        query[index] = f32::cast_from(queries[place]) * scale;
        index += UNITS;
    }

    let numbers = comptime!(heads * blueprint.value_words * word);
    let mut sums = Array::<f32>::new(numbers);
    let mut least_sums = Array::<f32>::new(comptime!(heads * blueprint.value_words));
    let mut weight_sums = Array::<f32>::new(heads);
    #[unroll]
    for place in 0..numbers {
        sums[place] = f32::new(0.0);
    }
    #[unroll]
    for place in 0..comptime!(heads * blueprint.value_words) {
        least_sums[place] = f32::new(0.0);
    }
    #[unroll]
    for head in 0..heads {
        weight_sums[head] = f32::new(0.0);
    }

    let first = usize::cast_from(offsets[cube.kv * offsets.stride(0)]);
    let own = usize::cast_from(offsets[(cube.kv + 1) * offsets.stride(0)]) - first;
    let total = own * group + tail - usize::cast_from(padding[cube.kv * padding.stride(0)]);
    if blueprint.wanted && cube.split == 0 {
        fill_weights(weights, cube.weight_start, cube.heads_left, columns - total, heads);
    }
    let to = (cube.split * chunk + chunk).min(own);
    let mut base = cube.split * chunk;
    while base < to {
        let held = (to - base).min(blueprint.pages);
        let count = held * group;
        if unit < held {
            page_of[unit] = u32::cast_from(list[(first + base + unit) * list.stride(0)]);
        }
        sync_cube();

        // Scores: the tokens of one word of a channel at once, channels shared between lanes. What
        // a level is multiplied by and what is added to it are taken into the query.
        let jobs = comptime!(blueprint.pages * words);
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
                let words_start = page * key_words.stride(0) + job % words;
                let scale_start = page * key_scale.stride(0);
                let min_start = page * key_min.stride(0);
                // A word and its line are loaded while those of the channel before are worked on.
                let mut channel = lane;
                let at = channel.min(comptime!(blueprint.head_dim - 1));
                let mut next_word = u32::cast_from(key_words[words_start + at * words]);
                let mut next_step = f32::cast_from(key_scale[scale_start + at]);
                let mut next_least = f32::cast_from(key_min[min_start + at]);
                while channel < blueprint.head_dim {
                    let packed = next_word;
                    let step = next_step;
                    let least = next_least;
                    let at = (channel + blueprint.lanes).min(comptime!(blueprint.head_dim - 1));
                    next_word = u32::cast_from(key_words[words_start + at * words]);
                    next_step = f32::cast_from(key_scale[scale_start + at]);
                    next_least = f32::cast_from(key_min[min_start + at]);
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
                        let token = job * word + index % word;
                        scores[head * tile + token] = score;
                        if blueprint.wanted && head < cube.heads_left {
                            let column = columns - total + base * group + token;
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

        running.take(&scores, count, heads, tile);
        let mut index = unit;
        while index < comptime!(heads * tile) {
            let token = index % tile;
            let head = index / tile;
            if token < count {
                let highest = running.highest_of(head, heads);
                shares[token * heads + head] = (scores[index] - highest).exp();
            }
            index += UNITS;
        }
        sync_cube();

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
        load_value(
            value_words,
            value_scale,
            value_min,
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
            load_value(
                value_words,
                value_scale,
                value_min,
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
        base += blueprint.pages;
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
            write_head(
                parts,
                &scratch,
                highest,
                cube.split,
                cube.batch * query_heads + cube.query_head + head,
                blueprint.head_dim,
                value_rows,
            );
        }
    }
}
