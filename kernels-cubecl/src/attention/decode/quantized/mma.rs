use cubecl::prelude::*;

use crate::{
    attention::decode::split::{
        fill_weights,
        mma::{
            HEADS, PlaneSums, TILE, add_plane_values, new_plane_sums, pair, plane_queries,
            plane_scores, plane_weights, write_planes,
        },
    },
    common::{
        masked::MASKED,
        tile::mma::{CHUNK, Chunk, Pair, definition, zeros},
    },
};

/// Tokens of a page, and channels that share a scale in a value.
pub(super) const GROUP: usize = 32;

/// Compile-time parameters of the kernel on tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct QuantizedMmaBlueprint {
    /// Planes of a cube.
    pub(super) planes: usize,
    /// 64 or 128.
    pub(super) head_dim: usize,
    /// 2 or 4.
    pub(super) bits: usize,
    /// Whether numbers are bf16, not f16.
    pub(super) brain: bool,
    /// Whether one cube has all tokens of its heads and writes their output.
    pub(super) whole: bool,
    /// Whether scores are written for weights.
    pub(super) wanted: bool,
}

impl QuantizedMmaBlueprint {
    /// Bits of a pair of numbers so large that their last bits count by one, and that number.
    fn large(&self) -> (u32, f32) {
        if self.brain { (0x4300_4300, 128.0) } else { (0x6400_6400, 1024.0) }
    }

    /// Mask of the bits of a level in each half of a word.
    fn mask(&self) -> u32 {
        let one = (1 << self.bits) - 1;
        one << 16 | one
    }
}

/// Word of the lower halves of two words, or of their upper ones.
#[cube]
pub(super) fn halves(left: u32, right: u32, #[comptime] upper: bool) -> u32 {
    if comptime!(upper) {
        ((left >> 16) & 0xffff_u32) | (right & 0xffff_0000_u32)
    } else {
        (left & 0xffff_u32) | (right << 16)
    }
}

/// Numbers that the lowest bits of both halves of a word stand for. A level becomes the last bits
/// of a number of which the rest is subtracted: exact, and quicker than a conversion.
#[cube]
fn numbers<E: Float>(
    levels: u32,
    step: Pair<E>,
    least: Pair<E>,
    #[comptime] blueprint: QuantizedMmaBlueprint,
) -> Pair<E> {
    let (large, offset) = comptime!(blueprint.large());
    let levels = Pair::<E>::reinterpret((levels & comptime!(blueprint.mask())) | large);
    fma(levels - Pair::<E>::new(E::new(offset)), step, least)
}

/// Part of the tokens of [`super::quantized`] that one cube has, on tensor cores. Pages are of
/// [`GROUP`] tokens, their values quantized in groups of as many channels, and rows of the tail
/// contiguous.
///
/// Numbers are laid out in the registers of the instruction, two at a time. Of keys a lane has 8
/// channels beside each other in turn with three others, and of each word of them the tokens that
/// stand at its own place; of values it has a run of channels of some tokens. Eight lanes read the
/// same words of keys together.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn quantized_planes<E: Float, I: Int, W: Int>(
    queries: &Tensor<E>,
    key_words: &Tensor<Vector<W, Const<4>>>,
    key_scale: &Tensor<Chunk<E>>,
    key_min: &Tensor<Chunk<E>>,
    value_words: &Tensor<W>,
    value_scale: &Tensor<E>,
    value_min: &Tensor<E>,
    list: &Tensor<I>,
    offsets: &Tensor<I>,
    tail_padding: &Tensor<I>,
    tail_keys: &Tensor<Chunk<E>>,
    tail_values: &Tensor<Chunk<E>>,
    weights: &mut Tensor<f32>,
    parts: &mut Tensor<f32>,
    output: &mut Tensor<E>,
    columns: usize,
    tail: usize,
    share: usize,
    scale: f32,
    #[comptime] blueprint: QuantizedMmaBlueprint,
    #[define(E, I, W)] _types: [ElemType; 3],
) {
    let QuantizedMmaBlueprint { planes, head_dim, bits, whole, wanted, .. } = blueprint;
    let spans = comptime!(head_dim / 32);
    let value_groups = comptime!(head_dim / GROUP);
    // Words of the tokens of a channel, and of a value.
    let key_row = comptime!(GROUP * bits / 32);
    let value_row = comptime!(head_dim * bits / 32);
    // Channels of a value that a lane has, its words of them, and tokens of the 16 of a tile whose
    // levels lie in one word of keys.
    let run = comptime!(head_dim / 8);
    let run_words = comptime!((run * bits).div_ceil(32));
    let uppers = comptime!(4 / bits);

    let plane = UNIT_POS as usize / 32;
    let lane = UNIT_POS_PLANE as usize;
    let line = lane / 4;
    let quad = lane % 4;
    let split = plane_split::<E, I>(
        queries,
        offsets,
        tail_padding,
        &*weights,
        tail_keys.shape(1),
        columns,
        tail,
        share,
    );
    if comptime!(wanted) && split.part == 0 {
        fill_weights(weights, split.weight_start, split.heads_left, split.padding, HEADS);
    }
    let query = plane_queries::<E>(queries, split.query_start, split.heads_left, head_dim, CHUNK);
    let mut sums = new_plane_sums(head_dim);

    let mut tile = split.part * share + plane;
    let mut page = page_at::<I>(list, &split, tile);
    while tile < split.end {
        if tile < split.own {
            // What values are made of is under way while keys are worked on.
            let mut words = Array::<u32>::new(comptime!(8 * run_words));
            let mut steps = Array::<E>::new(8usize);
            let mut leasts = Array::<E>::new(8usize);
            #[unroll]
            for one in 0..8usize {
                let token = comptime!(one / 2 * 8 + one % 2) + quad * 2;
                let at = page * value_words.stride(0) + token * value_row + line * run * bits / 32;
                #[unroll]
                for word in 0..run_words {
                    words[one * run_words + word] = u32::cast_from(value_words[at + word]);
                }
                let at = token * value_groups + line * run / GROUP;
                steps[one] = value_scale[page * value_scale.stride(0) + at];
                leasts[one] = value_min[page * value_min.stride(0) + at];
            }
            let next = page_at::<I>(list, &split, tile + planes);

            let mut products = Sequence::<Array<Pair<f32>>>::new();
            #[unroll]
            for _ in 0..4usize {
                products.push(zeros());
            }
            #[unroll]
            for span in 0..spans {
                let chunk = span * 4 + quad;
                let step = key_scale[page * key_scale.stride(0) / CHUNK + chunk];
                let least = key_min[page * key_min.stride(0) / CHUNK + chunk];
                let mut packed = Array::<u32>::new(comptime!(CHUNK * key_row));
                let at = page * key_words.stride(0) / 4 + chunk * comptime!(CHUNK * key_row / 4);
                #[unroll]
                for vector in 0..comptime!(CHUNK * key_row / 4) {
                    let four = key_words[at + vector];
                    #[unroll]
                    for one in 0..4usize {
                        // The levels of the lane's tokens stand lowest in their halves.
                        let word = u32::cast_from(four.extract(one));
                        packed[vector * 4 + one] = word >> (line * bits) as u32;
                    }
                }
                #[unroll]
                for eight in 0..4usize {
                    let word = comptime!(eight / uppers);
                    let upper = comptime!(eight % uppers == 1);
                    let mut b = Array::<Pair<E>>::new(4usize);
                    #[unroll]
                    for register in 0..4usize {
                        let channel = comptime!(register * 2);
                        let levels = halves(
                            packed[channel * key_row + word],
                            packed[(channel + 1) * key_row + word],
                            upper,
                        );
                        let step = pair::<E>(step.extract(channel), step.extract(channel + 1));
                        let least = pair::<E>(least.extract(channel), least.extract(channel + 1));
                        b[register] = numbers::<E>(levels, step, least, blueprint);
                    }
                    #[unroll]
                    for half in 0..2usize {
                        let mut a = Array::<Pair<E>>::new(4usize);
                        a[0] = query[span * 4 + half * 2];
                        a[1] = Pair::<E>::new(E::new(0.0));
                        a[2] = query[span * 4 + half * 2 + 1];
                        a[3] = Pair::<E>::new(E::new(0.0));
                        let mut two = Array::<Pair<E>>::new(2usize);
                        two[0] = b[half * 2];
                        two[1] = b[half * 2 + 1];
                        definition::<E>().execute_inplace(&a, &two, &mut products[eight]);
                    }
                }
            }
            #[unroll]
            for half in 0..2usize {
                let mut scores = Array::<Pair<f32>>::new(2usize);
                #[unroll]
                for eight in 0..2usize {
                    scores[eight] = products[half * 2 + eight][0] * Pair::<f32>::new(scale);
                    if comptime!(wanted) {
                        let token = tile * GROUP + comptime!(half * 16 + eight * 8) + quad * 2;
                        let column = split.padding + token;
                        write_scores(weights, &split, scores[eight], column, columns);
                    }
                }
                let weight = plane_weights::<E>(&scores, &mut sums, head_dim);
                #[unroll]
                for place in 0..comptime!(head_dim / 16) {
                    let mut a = Array::<Pair<E>>::new(4usize);
                    #[unroll]
                    for register in 0..4usize {
                        let one = comptime!(half * 4 + register / 2 * 2);
                        let channel = comptime!(place * 2 + register % 2);
                        let word = comptime!(channel * bits / 32);
                        let bit = comptime!(channel * bits % 32);
                        let mut left = words[one * run_words + word];
                        let mut right = words[(one + 1) * run_words + word];
                        if comptime!(run * bits < 32) {
                            let shift = (line * comptime!(run * bits) % 32) as u32;
                            left >>= shift;
                            right >>= shift;
                        }
                        let levels = halves(left, right, comptime!(bit >= 16));
                        let levels = levels >> comptime!((bit % 16) as u32);
                        let step = pair::<E>(steps[one], steps[one + 1]);
                        let least = pair::<E>(leasts[one], leasts[one + 1]);
                        a[register] = numbers::<E>(levels, step, least, blueprint);
                    }
                    definition::<E>().execute_inplace(&a, &weight, &mut sums.values[place]);
                }
            }
            page = next;
        } else {
            add_tail::<E>(
                tail_keys,
                tail_values,
                weights,
                &query,
                &mut sums,
                &split,
                tile,
                columns,
                scale,
                head_dim,
                CHUNK,
                wanted,
            );
        }
        tile += planes;
    }
    write_planes::<E>(
        parts,
        output,
        &sums,
        split.batch,
        split.first_head,
        split.heads_left,
        split.part,
        head_dim,
        run,
        planes,
        whole,
    );
}

/// Part of the tokens of a kv head that one cube has, for up to [`HEADS`] of its query heads.
#[derive(CubeType)]
pub(super) struct PlaneSplit {
    pub(super) batch: usize,
    pub(super) kv_head: usize,
    pub(super) first_head: usize,
    pub(super) heads_left: usize,
    pub(super) part: usize,
    /// Start of the pages of the kv head in the list, and their number.
    pub(super) first: usize,
    pub(super) own: usize,
    /// Rows of the tail that are padding, and those that are not.
    pub(super) tail_first: usize,
    pub(super) own_tail: usize,
    /// Tile behind the last: pages, and behind them tiles of the tail.
    pub(super) end: usize,
    /// Columns of the weights that are padding.
    pub(super) padding: usize,
    pub(super) weight_start: usize,
    pub(super) query_start: usize,
}

/// The split of this cube, `share` tiles long.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(super) fn plane_split<E: Float, I: Int>(
    queries: &Tensor<E>,
    offsets: &Tensor<I>,
    tail_padding: &Tensor<I>,
    weights: &Tensor<f32>,
    kv_heads: usize,
    columns: usize,
    tail: usize,
    share: usize,
) -> PlaneSplit {
    let group = queries.shape(1) / kv_heads;
    let blocks = group.div_ceil(HEADS);
    let kv_head = CUBE_POS_Y as usize / blocks;
    let block = CUBE_POS_Y as usize % blocks * HEADS;
    let first_head = kv_head * group + block;
    let batch = CUBE_POS_Z as usize;
    let part = CUBE_POS_X as usize;
    let kv = batch * kv_heads + kv_head;
    let first = usize::cast_from(offsets[kv * offsets.stride(0)]);
    let own = usize::cast_from(offsets[(kv + 1) * offsets.stride(0)]) - first;
    let tail_first = usize::cast_from(tail_padding[kv * tail_padding.stride(0)]);
    let own_tail = tail - tail_first;
    PlaneSplit {
        batch,
        kv_head,
        first_head,
        heads_left: group - block,
        part,
        first,
        own,
        tail_first,
        own_tail,
        end: ((part + 1) * share).min(own + own_tail.div_ceil(TILE)),
        padding: columns - own * GROUP - own_tail,
        weight_start: batch * weights.stride(0) + first_head * weights.stride(1),
        query_start: batch * queries.stride(0) + first_head * queries.stride(1),
    }
}

/// Adds a tile of the tail. Queries are in the order of loads of `run` channels of a key.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(super) fn add_tail<E: Float>(
    keys: &Tensor<Chunk<E>>,
    values: &Tensor<Chunk<E>>,
    weights: &mut Tensor<f32>,
    query: &Array<Pair<E>>,
    sums: &mut PlaneSums,
    split: &PlaneSplit,
    tile: usize,
    columns: usize,
    scale: f32,
    #[comptime] head_dim: usize,
    #[comptime] run: usize,
    #[comptime] wanted: bool,
) {
    let chunks = comptime!(run / CHUNK);
    let spans = comptime!(head_dim / 32);
    let groups = comptime!(head_dim / 64);
    let line = UNIT_POS_PLANE as usize / 4;
    let quad = UNIT_POS_PLANE as usize % 4;
    let own_tail = split.own_tail;
    let key_start = split.batch * keys.stride(0) + split.kv_head * keys.stride(1);
    let value_start = split.batch * values.stride(0) + split.kv_head * values.stride(1);
    let base = (tile - split.own) * TILE;
    let mut key = Array::<Pair<E>>::new(comptime!(head_dim / 4));
    #[unroll]
    for load in 0..comptime!(2 * spans) {
        let row = split.tail_first + (base + load / spans * 8 + line).min(own_tail - 1);
        let place = (key_start + row * keys.stride(2)) / CHUNK;
        let first = comptime!(load % spans / chunks * 4);
        let chunk = keys[place + (first + quad) * chunks + comptime!(load % chunks)];
        #[unroll]
        for register in 0..4usize {
            let channel = comptime!(register * 2);
            key[load * 4 + register] =
                pair::<E>(chunk.extract(channel), chunk.extract(channel + 1));
        }
    }
    let mut value = Array::<Chunk<E>>::new(comptime!(4 * groups));
    #[unroll]
    for one in 0..4usize {
        let own = quad * 2 + one / 2 * 8 + one % 2;
        let row = split.tail_first + (base + own).min(own_tail - 1);
        let place = (value_start + row * values.stride(2)) / CHUNK;
        #[unroll]
        for span in 0..groups {
            value[span * 4 + one] = values[place + line * groups + span];
        }
    }
    let mut scores = Array::<Pair<f32>>::new(2usize);
    #[unroll]
    for eight in 0..2usize {
        let first = comptime!(eight * head_dim / 8);
        let score = plane_scores::<E>(query, &key, first, head_dim);
        let mut two = score[0] * Pair::<f32>::new(scale);
        let row = base + eight * 8 + quad * 2;
        if comptime!(wanted) {
            let column = split.padding + split.own * GROUP + row;
            write_scores(weights, split, two, column, columns);
        }
        #[unroll]
        for side in 0..2usize {
            let one = two.extract(side);
            two.insert(side, select(row + side >= own_tail, MASKED, one));
        }
        scores[eight] = two;
    }
    let weight = plane_weights::<E>(&scores, sums, head_dim);
    add_plane_values::<E>(&value, &weight, sums, head_dim);
}

/// Page of a tile; 0 for a tile of the tail.
#[cube]
pub(super) fn page_at<I: Int>(list: &Tensor<I>, split: &PlaneSplit, tile: usize) -> usize {
    let mut page = 0usize.runtime();
    if tile < split.own {
        page = usize::cast_from(list[(split.first + tile) * list.stride(0)]);
    }
    page
}

/// Writes the scores of the lane's head with two tokens, in a column and the next.
#[cube]
pub(super) fn write_scores(
    weights: &mut Tensor<f32>,
    split: &PlaneSplit,
    scores: Pair<f32>,
    column: usize,
    columns: usize,
) {
    let line = UNIT_POS_PLANE as usize / 4;
    if line < split.heads_left {
        #[unroll]
        for side in 0..2usize {
            if column + side < columns {
                let row = split.weight_start + line * weights.stride(1);
                let place = row + (column + side) * weights.stride(2);
                weights[place] = scores.extract(side);
            }
        }
    }
}
