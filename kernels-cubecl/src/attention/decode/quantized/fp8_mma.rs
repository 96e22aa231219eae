use cubecl::prelude::*;

use super::mma::{GROUP, add_tail, halves, page_at, plane_split, write_scores};
use crate::{
    attention::decode::split::{
        fill_weights,
        mma::{HEADS, new_plane_sums, pair, plane_queries, plane_weights, write_planes},
    },
    common::tile::mma::{Chunk, Pair, definition, zeros},
};

/// Compile-time parameters of the kernel over pages of FP8 on tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fp8MmaBlueprint {
    /// Planes of a cube.
    pub(super) planes: usize,
    /// 64 or 128.
    pub(super) head_dim: usize,
    /// Whether numbers are bf16, not f16.
    pub(super) brain: bool,
    /// Whether one cube has all tokens of its heads and writes their output.
    pub(super) whole: bool,
    /// Whether scores are written for weights.
    pub(super) wanted: bool,
}

impl Fp8MmaBlueprint {
    /// Words of a load: two loads of eight lanes are a key, and one load of eight lanes is a value.
    pub(super) fn width(&self) -> usize {
        self.head_dim / 32
    }

    /// Places that exponent and mantissa of a byte, the upper one of a half, move down to those of
    /// the type, and 2 to the difference of their biases.
    fn format(&self) -> (u32, f32) {
        if self.brain { (4, 2f32.powi(127 - 7)) } else { (1, 2f32.powi(15 - 7)) }
    }
}

/// Numbers of the upper bytes of both halves of a word, exactly: those of the type hold all of
/// E4M3, and its subnormal ones are subnormal too before they are multiplied.
#[cube]
fn numbers<E: Float>(bytes: u32, #[comptime] blueprint: Fp8MmaBlueprint) -> Pair<E> {
    let (shift, bias) = comptime!(blueprint.format());
    let size = (bytes & 0x7f00_7f00_u32) >> shift;
    let small = Pair::<E>::reinterpret(size | (bytes & 0x8000_8000_u32));
    small * Pair::<E>::new(E::new(bias))
}

/// Part of the tokens of [`super::quantized`] that one cube has, in FP8, on tensor cores. Pages are
/// of [`GROUP`] tokens, and rows of the tail contiguous.
///
/// Bytes become numbers in the registers of the instruction. Of a key a lane has the channels of
/// two loads of `N` words, in turn with three others; of a value it has the channels of one load,
/// of eight tokens. The scale of a key multiplies its score.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn fp8_planes<E: Float, I: Int, W: Int, N: Size>(
    queries: &Tensor<E>,
    key_words: &Tensor<Vector<W, N>>,
    key_scale: &Tensor<E>,
    value_words: &Tensor<Vector<W, N>>,
    value_scale: &Tensor<E>,
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
    #[comptime] blueprint: Fp8MmaBlueprint,
    #[define(E, I, W)] _types: [ElemType; 3],
) {
    let Fp8MmaBlueprint { planes, head_dim, whole, wanted, .. } = blueprint;
    let width = comptime!(blueprint.width());
    // Channels of a load, of which a token has 8.
    let run = comptime!(head_dim / 8);

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
    let query = plane_queries::<E>(queries, split.query_start, split.heads_left, head_dim, run);
    let mut sums = new_plane_sums(head_dim);

    let mut tile = split.part * share + plane;
    let mut page = page_at::<I>(list, &split, tile);
    while tile < split.end {
        if tile < split.own {
            // What values are made of is under way while keys are worked on.
            let mut words = Array::<u32>::new(comptime!(8 * width));
            let mut steps = Array::<E>::new(8usize);
            let mut key_steps = Array::<f32>::new(8usize);
            let start = page * value_words.stride(0) / width;
            #[unroll]
            for one in 0..8usize {
                let token = comptime!(one / 2 * 8 + one % 2) + quad * 2;
                let load = value_words[start + token * 8 + line];
                #[unroll]
                for word in 0..width {
                    words[one * width + word] = u32::cast_from(load.extract(word));
                }
                steps[one] = value_scale[page * value_scale.stride(0) + token];
                key_steps[one] = f32::cast_from(key_scale[page * key_scale.stride(0) + token]);
            }
            let start = page * key_words.stride(0) / width;
            let next = page_at::<I>(list, &split, tile + planes);

            let mut products = Sequence::<Array<Pair<f32>>>::new();
            #[unroll]
            for _ in 0..4usize {
                products.push(zeros());
            }
            #[unroll]
            for eight in 0..4usize {
                #[unroll]
                for half in 0..2usize {
                    let at = start + (eight * 8 + line) * 8 + half * 4 + quad;
                    let load = key_words[at];
                    #[unroll]
                    for word in 0..width {
                        let bytes = u32::cast_from(load.extract(word));
                        let low = ((bytes & 0xff_u32) << 8) | ((bytes & 0xff00_u32) << 16);
                        let high = ((bytes >> 8) & 0xff00_u32) | (bytes & 0xff00_0000_u32);
                        let mut b = Array::<Pair<E>>::new(2usize);
                        b[0] = numbers::<E>(low, blueprint);
                        b[1] = numbers::<E>(high, blueprint);
                        let place = comptime!((half * width + word) * 2);
                        let mut a = Array::<Pair<E>>::new(4usize);
                        a[0] = query[place];
                        a[1] = Pair::<E>::new(E::new(0.0));
                        a[2] = query[comptime!(place + 1)];
                        a[3] = Pair::<E>::new(E::new(0.0));
                        definition::<E>().execute_inplace(&a, &b, &mut products[eight]);
                    }
                }
            }
            #[unroll]
            for half in 0..2usize {
                let mut scores = Array::<Pair<f32>>::new(2usize);
                #[unroll]
                for eight in 0..2usize {
                    let one = comptime!(half * 4 + eight * 2);
                    let step = pair::<f32>(key_steps[one], key_steps[comptime!(one + 1)]);
                    let product = products[half * 2 + eight][0];
                    scores[eight] = product * step * Pair::<f32>::new(scale);
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
                        let word = comptime!(channel / 4);
                        let mut bytes = halves(
                            words[one * width + word],
                            words[(one + 1) * width + word],
                            comptime!(channel % 4 >= 2),
                        );
                        if comptime!(channel % 2 == 0) {
                            bytes <<= 8u32;
                        }
                        let step = pair::<E>(steps[one], steps[comptime!(one + 1)]);
                        a[register] = numbers::<E>(bytes, blueprint) * step;
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
                run,
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
