use cubecl::prelude::*;

use super::{
    operands::{PageInputs, Vectors},
    portable::{PageBlueprint, zeros},
};
use crate::attention::decode::split::{
    Heads, Running, SplitCounts, UNITS, cube_split, fill_weights, write_head,
};

/// Numbers of a word.
pub(super) const WORD: usize = 4;
/// Most query heads of a cube: a unit keeps the channels of its words of all their queries, and as
/// many sums.
const MOST_HEADS: usize = 4;
/// Most words of a load: 16 bytes.
const MOST_WORDS: usize = 4;
/// Parts of scores that are put together at a time: 8 KiB, half of what WebGPU grants a cube.
const SCRATCH: usize = 2048;
/// Vectors that a unit loads before it waits for the first.
const AHEAD: usize = 4;

impl PageBlueprint {
    /// For FP8. `widest` is the most words of a token that can be loaded at once.
    pub(super) fn fp8(heads: Heads, group: usize, widest: usize, wanted: bool) -> Self {
        let (of_cube, blocks) = heads.blocks(MOST_HEADS);
        let head_dim = heads.head_dim;
        let width = widest.min(MOST_WORDS);
        // Units that share a token, each with one load of it.
        let lanes = head_dim.div_ceil(width * WORD);
        let tile = (SCRATCH / (lanes * of_cube)).min(UNITS);
        Self {
            head_dim,
            heads: of_cube,
            blocks,
            bits: 8,
            group,
            place: 1,
            places: tile,
            lanes,
            value_lanes: lanes,
            value_words: width,
            value_group: head_dim,
            // Rows of parts of scores are spread over the banks.
            parts: of_cube * tile * (lanes + 1),
            wanted,
        }
    }
}

/// The E4M3 number at `place` of a word.
///
/// Its exponent and mantissa become those of an f32, as of a normal number. Of a subnormal one,
/// below 2⁻⁶, that is (2⁻⁶ + number) / 2, which makes it the lesser of both. Everything is exact,
/// and nothing subnormal as an f32, which devices may take for zero.
#[cube]
fn number(word: u32, #[comptime] place: usize) -> f32 {
    let top = word << comptime!((24 - 8 * place) as u32);
    let size = f32::reinterpret(((top & 0x7f00_0000_u32) >> 4) + 0x3c00_0000_u32);
    let size = size.min(size + size - f32::new(0.015_625));
    f32::reinterpret(u32::reinterpret(size) | (top & 0x8000_0000_u32))
}

/// Loads the unit's words of some tokens of the tile, `rows` apart. Behind the last of `count` they
/// are that one's.
#[cube]
fn load<W: Int, N: Size>(
    words: &Tensor<Vector<W, N>>,
    page_of: &Shared<[u32]>,
    base: usize,
    first: usize,
    count: usize,
    #[comptime] blueprint: PageBlueprint,
) -> Array<Vector<W, N>> {
    let lanes = blueprint.lanes;
    let page_words = words.stride(0) / blueprint.value_words;
    let mut held = Array::<Vector<W, N>>::new(AHEAD);
    #[unroll]
    for ahead in 0..AHEAD {
        let row = (first + ahead * comptime!(blueprint.value_rows())).min(count - 1);
        let token = (base + row) % blueprint.group;
        let lane = UNIT_POS as usize % lanes;
        held[ahead] = words[page_of[row] as usize * page_words + token * lanes + lane];
    }
    held
}

/// One split of the pages of one kv head, for up to `blueprint.heads` of its query heads. Words of
/// a page are contiguous, and so are its scales.
#[cube(launch)]
pub(super) fn fp8_pages<Q: Float, K: Float, I: Int, W: Int, N: Size>(
    inputs: &PageInputs<Q, I>,
    keys: &Vectors<Vector<W, N>, K>,
    values: &Vectors<Vector<W, N>, K>,
    parts: &mut Tensor<f32>,
    weights: &mut Tensor<f32>,
    counts: &SplitCounts,
    #[comptime] blueprint: PageBlueprint,
    #[define(Q, K, I, W)] _types: [ElemType; 4],
) {
    let unit = UNIT_POS as usize;
    let PageBlueprint { head_dim, heads, group, lanes, .. } = blueprint;
    let cube = cube_split(&*weights, counts, heads, blueprint.blocks);
    let tile = comptime!(blueprint.tile());
    let rows = comptime!(blueprint.value_rows());
    let numbers = comptime!(blueprint.value_words * WORD);
    let pitch = comptime!(lanes + 1);
    let line = comptime!(head_dim + 1);
    let lane = unit % lanes;
    let slot = unit / lanes;

    // Page of each token.
    let mut page_of = Shared::<[u32]>::new_slice(tile);
    // `[heads, tile]`
    let mut scores = Shared::<[f32]>::new_slice(comptime!(heads * tile));
    // `[tile, heads]`
    let mut shares = Shared::<[f32]>::new_slice(comptime!(heads * tile));
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(blueprint.scratch()));
    let mut running = Running::new(heads);

    // `[heads, numbers]`, the channels of the unit's words.
    let mut query = Array::<f32>::new(comptime!(heads * numbers));
    let mut sums = zeros(comptime!(heads * numbers));
    let mut weight_sums = zeros(heads);
    let queries = &inputs.queries;
    #[unroll]
    for head in 0..heads {
        // The last cube of a kv head may have fewer heads: it works on one twice.
        let own = cube.query_head + head.min(cube.heads_left - 1);
        let start = cube.batch * queries.stride(0) + own * queries.stride(1);
        #[unroll]
        for place in 0..numbers {
            let channel = lane * numbers + place;
            let mut one = f32::new(0.0);
            if channel < head_dim {
                one = f32::cast_from(queries[start + channel * queries.stride(3)])
                    * inputs.scoring.scale;
            }
            query[comptime!(head * numbers + place)] = one;
        }
    }

    let offsets = &inputs.offsets;
    let padding = &inputs.tail_padding;
    let first = usize::cast_from(offsets[cube.kv * offsets.stride(0)]);
    let own = usize::cast_from(offsets[(cube.kv + 1) * offsets.stride(0)]) - first;
    let total = own * group + inputs.tail - usize::cast_from(padding[cube.kv * padding.stride(0)]);
    if blueprint.wanted && cube.split == 0 {
        fill_weights(weights, cube.weight_start, cube.heads_left, inputs.columns - total, heads);
    }
    let to = (cube.split * inputs.share + inputs.share).min(own) * group;
    let mut base = cube.split * inputs.share * group;
    while base < to {
        let count = (to - base).min(tile);
        if unit < count {
            let place = (first + (base + unit) / group) * inputs.list.stride(0);
            page_of[unit] = u32::cast_from(inputs.list[place]);
        }
        sync_cube();

        // Units behind the last whole row have nothing to do.
        let begin = select(slot < rows, slot, count);
        let mut row = begin;
        while row < count {
            let held = load::<W, N>(&keys.words, &page_of, base, row, count, blueprint);
            #[unroll]
            for ahead in 0..AHEAD {
                let mut products = Array::<f32>::new(heads);
                #[unroll]
                for head in 0..heads {
                    products[head] = f32::new(0.0);
                }
                #[unroll]
                for place in 0..numbers {
                    let word = u32::cast_from(held[ahead].extract(comptime!(place / WORD)));
                    let channel = number(word, comptime!(place % WORD));
                    #[unroll]
                    for head in 0..heads {
                        products[head] += query[comptime!(head * numbers + place)] * channel;
                    }
                }
                let row = row + ahead * rows;
                if row < count {
                    #[unroll]
                    for head in 0..heads {
                        scratch[(head * tile + row) * pitch + lane] = products[head];
                    }
                }
            }
            row += comptime!(AHEAD * rows);
        }
        sync_cube();
        let mut index = unit;
        while index < comptime!(heads * tile) {
            let row = index % tile;
            let head = index / tile;
            if row < count {
                let mut score = f32::new(0.0);
                for lane in 0..lanes {
                    score += scratch[index * pitch + lane];
                }
                let place = page_of[row] as usize * keys.scale.stride(0) + (base + row) % group;
                score = inputs.scoring.capped(score * f32::cast_from(keys.scale[place]));
                scores[index] = score;
                if blueprint.wanted && head < cube.heads_left {
                    let column = inputs.columns - total + base + row;
                    let place =
                        cube.weight_start + head * weights.stride(1) + column * weights.stride(2);
                    weights[place] = score;
                }
            }
            index += UNITS;
        }
        sync_cube();

        running.weigh(&scores, &mut shares, count, heads, tile);

        #[unroll]
        for head in 0..heads {
            let kept = running.kept[head];
            weight_sums[head] *= kept;
            #[unroll]
            for place in 0..numbers {
                sums[comptime!(head * numbers + place)] *= kept;
            }
        }
        let mut row = begin;
        while row < count {
            let held = load::<W, N>(&values.words, &page_of, base, row, count, blueprint);
            #[unroll]
            for ahead in 0..AHEAD {
                let row = row + ahead * rows;
                if row < count {
                    let place =
                        page_of[row] as usize * values.scale.stride(0) + (base + row) % group;
                    let step = f32::cast_from(values.scale[place]);
                    let mut steps = Array::<f32>::new(heads);
                    #[unroll]
                    for head in 0..heads {
                        let share = shares[row * heads + head];
                        weight_sums[head] += share;
                        steps[head] = share * step;
                    }
                    #[unroll]
                    for place in 0..numbers {
                        let word = u32::cast_from(held[ahead].extract(comptime!(place / WORD)));
                        let channel = number(word, comptime!(place % WORD));
                        #[unroll]
                        for head in 0..heads {
                            sums[comptime!(head * numbers + place)] += steps[head] * channel;
                        }
                    }
                }
            }
            row += comptime!(AHEAD * rows);
        }
        sync_cube();
        base += tile;
    }

    #[unroll]
    for head in 0..heads {
        // The scratch is still read from.
        sync_cube();
        if slot < rows {
            #[unroll]
            for place in 0..numbers {
                let channel = lane * numbers + place;
                if channel < head_dim {
                    scratch[slot * line + channel] = sums[comptime!(head * numbers + place)];
                }
            }
            if lane == 0 {
                scratch[slot * line + head_dim] = weight_sums[head];
            }
        }
        sync_cube();
        if head < cube.heads_left {
            let highest = running.highest[head];
            let own = cube.batch * counts.query_heads + cube.query_head + head;
            write_head(parts, &scratch, highest, cube.split, own, head_dim, rows);
        }
    }
}
