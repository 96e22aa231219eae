use cubecl::prelude::*;

use super::{
    mma::{PlaneBlueprint, PlaneCodec, halves},
    operands::Vectors,
};
use crate::{
    attention::decode::split::mma::{add_products, pair},
    common::tile::mma::{Pair, accumulators},
};

impl PlaneBlueprint {
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
fn numbers<E: Float>(bytes: u32, #[comptime] blueprint: PlaneBlueprint) -> Pair<E> {
    let (shift, bias) = comptime!(blueprint.format());
    let size = (bytes & 0x7f00_7f00_u32) >> shift;
    let small = Pair::<E>::reinterpret(size | (bytes & 0x8000_8000_u32));
    small * Pair::<E>::new(E::new(bias))
}

/// Bytes, which become numbers in the registers of the instruction.
///
/// Of a key a lane has the channels of two loads of `N` words, in turn with three others; of a
/// value it has the channels of one load, of eight tokens. The scale of a key multiplies its score.
pub(super) struct Fp8;

/// Words of values with the scale of each token, and those of the keys of the tokens.
#[derive(CubeType)]
pub(super) struct LoadedBytes<E: Float> {
    words: Array<u32>,
    steps: Array<E>,
    key_steps: Array<f32>,
}

#[cube]
impl<E: Float, W: Int, N: Size> PlaneCodec<E, W, N> for Fp8 {
    type Pages = (Vectors<Vector<W, N>, E>, Vectors<Vector<W, N>, E>);
    type Loaded = LoadedBytes<E>;

    fn load(
        pages: &Self::Pages,
        page: usize,
        #[comptime] blueprint: PlaneBlueprint,
    ) -> LoadedBytes<E> {
        let keys = &pages.0;
        let values = &pages.1;
        let width = comptime!(blueprint.width());
        let line = UNIT_POS_PLANE as usize / 4;
        let quad = UNIT_POS_PLANE as usize % 4;
        let mut words = Array::<u32>::new(comptime!(8 * width));
        let mut steps = Array::<E>::new(8usize);
        let mut key_steps = Array::<f32>::new(8usize);
        let start = page * values.words.stride(0) / width;
        #[unroll]
        for one in 0..8usize {
            let token = comptime!(one / 2 * 8 + one % 2) + quad * 2;
            let load = values.words[start + token * 8 + line];
            #[unroll]
            for word in 0..width {
                words[one * width + word] = u32::cast_from(load.extract(word));
            }
            steps[one] = values.scale[page * values.scale.stride(0) + token];
            key_steps[one] = f32::cast_from(keys.scale[page * keys.scale.stride(0) + token]);
        }
        LoadedBytes::<E> { words, steps, key_steps }
    }

    fn products(
        pages: &Self::Pages,
        queries: &Array<Pair<E>>,
        page: usize,
        #[comptime] blueprint: PlaneBlueprint,
    ) -> Sequence<Array<Pair<f32>>> {
        let keys = &pages.0;
        let width = comptime!(blueprint.width());
        let line = UNIT_POS_PLANE as usize / 4;
        let quad = UNIT_POS_PLANE as usize % 4;
        let start = page * keys.words.stride(0) / width;
        let mut products = accumulators(4usize);
        #[unroll]
        for eight in 0..4usize {
            #[unroll]
            for half in 0..2usize {
                let load = keys.words[start + (eight * 8 + line) * 8 + half * 4 + quad];
                #[unroll]
                for word in 0..width {
                    let bytes = u32::cast_from(load.extract(word));
                    let low = ((bytes & 0xff_u32) << 8) | ((bytes & 0xff00_u32) << 16);
                    let high = ((bytes >> 8) & 0xff00_u32) | (bytes & 0xff00_0000_u32);
                    let mut key = Array::<Pair<E>>::new(2usize);
                    key[0] = numbers::<E>(low, blueprint);
                    key[1] = numbers::<E>(high, blueprint);
                    let query = comptime!((half * width + word) * 2);
                    add_products::<E>(queries, &key, &mut products[eight], query, 0usize);
                }
            }
        }
        products
    }

    fn scaled(products: Pair<f32>, loaded: &LoadedBytes<E>, #[comptime] eight: usize) -> Pair<f32> {
        let one = comptime!(eight * 2);
        products * pair::<f32>(loaded.key_steps[one], loaded.key_steps[one + 1])
    }

    fn value(
        loaded: &LoadedBytes<E>,
        #[comptime] one: usize,
        #[comptime] channel: usize,
        #[comptime] blueprint: PlaneBlueprint,
    ) -> Pair<E> {
        let width = comptime!(blueprint.width());
        let word = comptime!(channel / 4);
        let mut bytes = halves(
            loaded.words[one * width + word],
            loaded.words[(one + 1) * width + word],
            comptime!(channel % 4 >= 2),
        );
        if comptime!(channel.is_multiple_of(2)) {
            bytes <<= 8u32;
        }
        let step = pair::<E>(loaded.steps[one], loaded.steps[one + 1]);
        numbers::<E>(bytes, blueprint) * step
    }
}
