use cubecl::prelude::*;

use super::operands::{Packed, PageInputs};
use crate::{
    attention::{
        decode::split::{
            fill_weights,
            mma::{
                HEADS, PlaneCube, PlaneOutputs, PlaneSums, TILE, add_plane_values, add_products,
                new_plane_sums, pair, plane_cube, plane_queries, plane_scores, plane_weights,
                write_planes,
            },
            operands::KeyValues,
        },
        scoring::ScoreArgs,
    },
    common::{
        masked::MASKED,
        tile::mma::{CHUNK, Chunk, Pair, accumulators, definition},
    },
};

/// Tokens of a page, and channels that share a scale in a value.
pub(super) const GROUP: usize = 32;

/// Compile-time parameters of the kernel on tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PlaneBlueprint {
    /// Planes of a cube.
    pub(super) planes: usize,
    /// 64 or 128.
    pub(super) head_dim: usize,
    /// Channels of a key that a lane has beside each other.
    pub(super) run: usize,
    /// Bits per number: 2 or 4 of levels, 8 of FP8.
    pub(super) bits: usize,
    /// Whether numbers are bf16, not f16.
    pub(super) brain: bool,
    /// Whether one cube has all tokens of its heads and writes their output.
    pub(super) whole: bool,
    /// Whether scores are written for weights.
    pub(super) wanted: bool,
}

impl PlaneBlueprint {
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

/// How pages hold their numbers, and how these get into the registers of the instruction, two at a
/// time.
#[cube]
pub(super) trait PlaneCodec<E: Float, W: Int, N: Size>: 'static + Send + Sync {
    /// Keys and values.
    type Pages: LaunchArg;
    /// What the lane has of the values of a page: a run of channels of 8 tokens.
    type Loaded: CubeType;

    /// Begins to load the values of a page.
    fn load(
        pages: &Self::Pages,
        page: usize,
        #[comptime] blueprint: PlaneBlueprint,
    ) -> Self::Loaded;

    /// Products of the queries with the keys of a page, 8 at a time.
    fn products(
        pages: &Self::Pages,
        queries: &Array<Pair<E>>,
        page: usize,
        #[comptime] blueprint: PlaneBlueprint,
    ) -> Sequence<Array<Pair<f32>>>;

    /// Products with two of 8 keys times what the numbers of these are multiplied by.
    fn scaled(products: Pair<f32>, loaded: &Self::Loaded, #[comptime] eight: usize) -> Pair<f32>;

    /// Numbers of a channel of the values of the lane's token `one` and the next.
    fn value(
        loaded: &Self::Loaded,
        #[comptime] one: usize,
        #[comptime] channel: usize,
        #[comptime] blueprint: PlaneBlueprint,
    ) -> Pair<E>;
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
    #[comptime] blueprint: PlaneBlueprint,
) -> Pair<E> {
    let (large, offset) = comptime!(blueprint.large());
    let levels = Pair::<E>::reinterpret((levels & comptime!(blueprint.mask())) | large);
    fma(levels - Pair::<E>::new(E::new(offset)), step, least)
}

/// Numbers of 2 or 4 bits, those of values quantized in groups of [`GROUP`] channels.
///
/// Of keys a lane has 8 channels beside each other in turn with three others, and of each word of
/// them the tokens that stand at its own place. Eight lanes read the same words of keys together.
pub(super) struct Levels;

/// Words of values, with scale and minimum of each token.
#[derive(CubeType)]
pub(super) struct LoadedLevels<E: Float> {
    words: Array<u32>,
    steps: Array<E>,
    leasts: Array<E>,
}

/// `N` is 4, as `quantized_planes` is launched: four words are loaded at once.
#[cube]
impl<E: Float, W: Int, N: Size> PlaneCodec<E, W, N> for Levels {
    type Pages = (Packed<Vector<W, N>, Chunk<E>>, Packed<W, E>);
    type Loaded = LoadedLevels<E>;

    fn load(
        pages: &Self::Pages,
        page: usize,
        #[comptime] blueprint: PlaneBlueprint,
    ) -> LoadedLevels<E> {
        let PlaneBlueprint { head_dim, bits, .. } = blueprint;
        let values = &pages.1;
        let groups = comptime!(head_dim / GROUP);
        let row = comptime!(head_dim * bits / 32);
        // Channels of a value that a lane has, and its words of them.
        let run = comptime!(head_dim / 8);
        let run_words = comptime!((run * bits).div_ceil(32));
        let line = UNIT_POS_PLANE as usize / 4;
        let quad = UNIT_POS_PLANE as usize % 4;
        let mut words = Array::<u32>::new(comptime!(8 * run_words));
        let mut steps = Array::<E>::new(8usize);
        let mut leasts = Array::<E>::new(8usize);
        #[unroll]
        for one in 0..8usize {
            let token = comptime!(one / 2 * 8 + one % 2) + quad * 2;
            let at = page * values.words.stride(0) + token * row + line * run * bits / 32;
            #[unroll]
            for word in 0..run_words {
                words[one * run_words + word] = u32::cast_from(values.words[at + word]);
            }
            let at = token * groups + line * run / GROUP;
            steps[one] = values.scale[page * values.scale.stride(0) + at];
            leasts[one] = values.min[page * values.min.stride(0) + at];
        }
        LoadedLevels::<E> { words, steps, leasts }
    }

    fn products(
        pages: &Self::Pages,
        queries: &Array<Pair<E>>,
        page: usize,
        #[comptime] blueprint: PlaneBlueprint,
    ) -> Sequence<Array<Pair<f32>>> {
        let PlaneBlueprint { head_dim, bits, .. } = blueprint;
        let keys = &pages.0;
        // Words of the tokens of a channel, and tokens of the 16 of a tile whose levels lie in one.
        let row = comptime!(GROUP * bits / 32);
        let uppers = comptime!(4 / bits);
        let line = UNIT_POS_PLANE as usize / 4;
        let quad = UNIT_POS_PLANE as usize % 4;
        let mut products = accumulators(4usize);
        #[unroll]
        for span in 0..comptime!(head_dim / 32) {
            let chunk = span * 4 + quad;
            let step = keys.scale[page * keys.scale.stride(0) / CHUNK + chunk];
            let least = keys.min[page * keys.min.stride(0) / CHUNK + chunk];
            let mut packed = Array::<u32>::new(comptime!(CHUNK * row));
            let at = page * keys.words.stride(0) / 4 + chunk * comptime!(CHUNK * row / 4);
            #[unroll]
            for vector in 0..comptime!(CHUNK * row / 4) {
                let four = keys.words[at + vector];
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
                let mut key = Array::<Pair<E>>::new(4usize);
                #[unroll]
                for register in 0..4usize {
                    let channel = comptime!(register * 2);
                    let levels = halves(
                        packed[channel * row + word],
                        packed[(channel + 1) * row + word],
                        upper,
                    );
                    let step = pair::<E>(step.extract(channel), step.extract(channel + 1));
                    let least = pair::<E>(least.extract(channel), least.extract(channel + 1));
                    key[register] = numbers::<E>(levels, step, least, blueprint);
                }
                #[unroll]
                for half in 0..2usize {
                    let place = comptime!(half * 2);
                    let query = comptime!(span * 4 + place);
                    add_products::<E>(queries, &key, &mut products[eight], query, place);
                }
            }
        }
        products
    }

    fn scaled(
        products: Pair<f32>,
        _loaded: &LoadedLevels<E>,
        #[comptime] _eight: usize,
    ) -> Pair<f32> {
        products
    }

    fn value(
        loaded: &LoadedLevels<E>,
        #[comptime] one: usize,
        #[comptime] channel: usize,
        #[comptime] blueprint: PlaneBlueprint,
    ) -> Pair<E> {
        let PlaneBlueprint { head_dim, bits, .. } = blueprint;
        let run = comptime!(head_dim / 8);
        let run_words = comptime!((run * bits).div_ceil(32));
        let word = comptime!(channel * bits / 32);
        let bit = comptime!(channel * bits % 32);
        let mut left = loaded.words[one * run_words + word];
        let mut right = loaded.words[(one + 1) * run_words + word];
        if comptime!(run * bits < 32) {
            let line = UNIT_POS_PLANE as usize / 4;
            let shift = (line * comptime!(run * bits) % 32) as u32;
            left >>= shift;
            right >>= shift;
        }
        let levels = halves(left, right, comptime!(bit >= 16));
        let levels = levels >> comptime!((bit % 16) as u32);
        let step = pair::<E>(loaded.steps[one], loaded.steps[one + 1]);
        let least = pair::<E>(loaded.leasts[one], loaded.leasts[one + 1]);
        numbers::<E>(levels, step, least, blueprint)
    }
}

/// Part of the tokens of [`super::quantized`] that one cube has, on tensor cores. Pages are of
/// [`GROUP`] tokens, and rows of the tail contiguous.
#[cube(launch)]
pub(super) fn quantized_planes<E: Float, I: Int, W: Int, N: Size, C: PlaneCodec<E, W, N>>(
    inputs: &PageInputs<E, I>,
    tail: &KeyValues<Chunk<E>>,
    outputs: &mut PlaneOutputs<E>,
    pages: &C::Pages,
    #[comptime] blueprint: PlaneBlueprint,
    #[define(E, I, W)] _types: [ElemType; 3],
) {
    let PlaneBlueprint { planes, head_dim, run, whole, wanted, .. } = blueprint;
    let plane = UNIT_POS as usize / 32;
    let quad = UNIT_POS_PLANE as usize % 4;
    let cube = plane_cube::<E>(&inputs.queries, &outputs.weights, tail.keys.shape(1));
    let split = plane_split::<E, I>(inputs, &cube);
    if comptime!(wanted) && cube.part == 0 {
        fill_weights(
            &mut outputs.weights,
            cube.weight_start,
            cube.heads_left,
            split.padding,
            HEADS,
        );
    }
    let query = plane_queries::<E>(&inputs.queries, &cube, head_dim, run);
    let mut sums = new_plane_sums(head_dim);

    let mut tile = cube.part * inputs.share + plane;
    let mut page = page_at::<I>(&inputs.list, &split, tile);
    while tile < split.end {
        if tile < split.own {
            // What values are made of is under way while keys are worked on.
            let loaded = C::load(pages, page, blueprint);
            let next = page_at::<I>(&inputs.list, &split, tile + planes);
            let products = C::products(pages, &query, page, blueprint);
            #[unroll]
            for half in 0..2usize {
                let mut scores = Array::<Pair<f32>>::new(2usize);
                #[unroll]
                for side in 0..2usize {
                    let eight = comptime!(half * 2 + side);
                    let own = C::scaled(products[eight][0], &loaded, eight);
                    scores[side] = two_scores(&inputs.scoring, own);
                    if comptime!(wanted) {
                        let token = tile * GROUP + comptime!(eight * 8) + quad * 2;
                        let column = split.padding + token;
                        write_scores(
                            &mut outputs.weights,
                            &cube,
                            scores[side],
                            column,
                            inputs.columns,
                        );
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
                        a[register] = C::value(&loaded, one, channel, blueprint);
                    }
                    definition::<E>().execute_inplace(&a, &weight, &mut sums.values[place]);
                }
            }
            page = next;
        } else {
            add_tail::<E, I>(
                inputs,
                tail,
                &mut outputs.weights,
                &query,
                &mut sums,
                &cube,
                &split,
                tile,
                blueprint,
            );
        }
        tile += planes;
    }
    write_planes::<E>(outputs, &sums, &cube, head_dim, comptime!(head_dim / 8), planes, whole);
}

/// Pages and rows of the tail of a kv head.
#[derive(CubeType)]
struct PlaneSplit {
    /// Start of the pages in the list, and their number.
    first: usize,
    own: usize,
    /// Rows of the tail that are padding, and those that are not.
    tail_first: usize,
    own_tail: usize,
    /// Tile of the cube behind its last: pages, and behind them tiles of the tail.
    end: usize,
    /// Columns of the weights that are padding.
    padding: usize,
}

#[cube]
fn plane_split<E: Float, I: Int>(inputs: &PageInputs<E, I>, cube: &PlaneCube) -> PlaneSplit {
    let first = usize::cast_from(inputs.offsets[cube.kv * inputs.offsets.stride(0)]);
    let own = usize::cast_from(inputs.offsets[(cube.kv + 1) * inputs.offsets.stride(0)]) - first;
    let tail_first = usize::cast_from(inputs.tail_padding[cube.kv * inputs.tail_padding.stride(0)]);
    let own_tail = inputs.tail - tail_first;
    PlaneSplit {
        first,
        own,
        tail_first,
        own_tail,
        end: ((cube.part + 1) * inputs.share).min(own + own_tail.div_ceil(TILE)),
        padding: inputs.columns - own * GROUP - own_tail,
    }
}

/// Adds a tile of the tail. Queries are in the order of loads of `run` channels of a key.
#[cube]
fn add_tail<E: Float, I: Int>(
    inputs: &PageInputs<E, I>,
    rows: &KeyValues<Chunk<E>>,
    weights: &mut Tensor<f32>,
    query: &Array<Pair<E>>,
    sums: &mut PlaneSums,
    cube: &PlaneCube,
    split: &PlaneSplit,
    tile: usize,
    #[comptime] blueprint: PlaneBlueprint,
) {
    let PlaneBlueprint { head_dim, run, wanted, .. } = blueprint;
    let keys = &rows.keys;
    let values = &rows.values;
    let chunks = comptime!(run / CHUNK);
    let spans = comptime!(head_dim / 32);
    let groups = comptime!(head_dim / 64);
    let line = UNIT_POS_PLANE as usize / 4;
    let quad = UNIT_POS_PLANE as usize % 4;
    let own_tail = split.own_tail;
    let key_start = cube.batch * keys.stride(0) + cube.kv_head * keys.stride(1);
    let value_start = cube.batch * values.stride(0) + cube.kv_head * values.stride(1);
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
        let mut two = two_scores(&inputs.scoring, score[0]);
        let row = base + eight * 8 + quad * 2;
        if comptime!(wanted) {
            let column = split.padding + split.own * GROUP + row;
            write_scores(weights, cube, two, column, inputs.columns);
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

/// Scores of the lane's head with two tokens.
#[cube]
fn two_scores(scoring: &ScoreArgs, products: Pair<f32>) -> Pair<f32> {
    let scaled = products * Pair::<f32>::new(scoring.scale);
    pair::<f32>(scoring.capped(scaled.extract(0usize)), scoring.capped(scaled.extract(1usize)))
}

/// Page of a tile; 0 for a tile of the tail.
#[cube]
fn page_at<I: Int>(list: &Tensor<I>, split: &PlaneSplit, tile: usize) -> usize {
    let mut page = 0usize.runtime();
    if tile < split.own {
        page = usize::cast_from(list[(split.first + tile) * list.stride(0)]);
    }
    page
}

/// Writes the scores of the lane's head with two tokens, in a column and the next.
#[cube]
fn write_scores(
    weights: &mut Tensor<f32>,
    cube: &PlaneCube,
    scores: Pair<f32>,
    column: usize,
    columns: usize,
) {
    let line = UNIT_POS_PLANE as usize / 4;
    if line < cube.heads_left {
        #[unroll]
        for side in 0..2usize {
            if column + side < columns {
                let row = cube.weight_start + line * weights.stride(1);
                let place = row + (column + side) * weights.stride(2);
                weights[place] = scores.extract(side);
            }
        }
    }
}
