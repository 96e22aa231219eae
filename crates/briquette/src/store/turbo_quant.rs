use burn::tensor::{DType, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::{
    Ragged, Store, StoreBuilder, StoreOptions,
    codec::Codec,
    packed::{Packed, Widths},
    paged::PagedStore,
    rotation::Rotation,
};
use crate::{
    Result, check,
    ops::{Ops, pack_words, unpack_words, words_of},
    prefix::Parts,
};

/// Tokens of a page.
const PAGE: usize = 32;

/// Entries rotated and rounded to a codebook: TurboQuant (Zandieh et al., 2025, [arXiv
/// 2504.19874](https://arxiv.org/abs/2504.19874)), the form that minimises the squared error
/// (Algorithm 1).
///
/// A vector is divided by its norm, which is held beside it in the cache's type. It is then
/// rotated, so that its d channels are nearly normal numbers of variance 1/d, whatever the vector
/// was. Each is rounded to the nearest of the 2ᵇ numbers that fit normal ones best (Lloyd–Max), and
/// held as b bits in 32-bit words. The rotation is a Hadamard matrix with signs; where d is no
/// power of two, it is a Hadamard matrix times a cosine transform.
///
/// Nothing is learnt. A page is packed when it is full: the last tokens, fewer than `residual` +
/// 32, are held unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TurboQuant {
    /// Bits per number of keys: 2, 3 or 4.
    pub key_bits: u8,
    /// Bits per number of values: 2, 3 or 4.
    pub value_bits: u8,
    /// Minimum number of last tokens that are held unpacked.
    #[serde(default)]
    pub residual: usize,
    /// Number of layers at either end of the model that hold their entries unpacked.
    #[serde(default)]
    pub whole_layers: usize,
}

impl TurboQuant {
    /// Creates a store with these bits for keys and values, in all layers and for all tokens.
    pub fn new(key_bits: u8, value_bits: u8) -> Self {
        Self { key_bits, value_bits, residual: 0, whole_layers: 0 }
    }

    fn leaves_alone(&self, options: &StoreOptions) -> bool {
        let behind = options.shape.layers.saturating_sub(options.layer + 1);
        options.layer.min(behind) < self.whole_layers
    }
}

impl StoreBuilder for TurboQuant {
    fn name(&self) -> &str {
        "turbo-quant"
    }

    fn summary(&self) -> String {
        let Self { key_bits, value_bits, residual, whole_layers } = self;
        let mut text =
            format!("{}, keys to {key_bits} and values to {value_bits} bits", self.name());
        if *residual > 0 {
            text += &format!(", last {residual} full");
        }
        if *whole_layers > 0 {
            text += &format!(", {whole_layers} layers at either end full");
        }
        text
    }

    fn check(&self) -> Result<()> {
        for (name, bits) in
            [("store.key-bits", self.key_bits), ("store.value-bits", self.value_bits)]
        {
            if !(2..=4).contains(&bits) {
                return check::refuse(name, bits, "2, 3 or 4");
            }
        }
        check::columns("store.residual", self.residual)
    }

    fn holds_ragged_heads(&self) -> bool {
        true
    }

    fn repacks_entries(&self) -> bool {
        true
    }

    fn build(&self, options: StoreOptions) -> Box<dyn Store> {
        if self.leaves_alone(&options) {
            return Ragged {}.build(options);
        }
        Box::new(PagedStore::new(*self, options))
    }

    fn restore(&self, options: StoreOptions, parts: Parts) -> Result<Option<Box<dyn Store>>> {
        if self.leaves_alone(&options) {
            return Ragged {}.restore(options, parts);
        }
        Ok(Some(Box::new(PagedStore::restore(*self, options, parts)?)))
    }
}

impl Codec for TurboQuant {
    fn group(&self) -> usize {
        PAGE
    }

    fn residual(&self) -> usize {
        self.residual
    }

    fn widths(&self, head_dim: usize) -> Vec<Widths> {
        let of = |bits| Widths { words: PAGE * words_of(head_dim, bits), measures: vec![PAGE] };
        vec![of(self.key_bits), of(self.value_bits)]
    }

    fn pack(
        &self,
        keys: Tensor<3>,
        values: Tensor<3>,
        _channels: Option<Tensor<2, Int>>,
        dtype: DType,
        _ops: &dyn Ops,
    ) -> Vec<Packed> {
        let rotation = Rotation::new(keys.dims()[2], &keys.device());
        let pack = |x, bits| encode(x, bits, &rotation, dtype);
        vec![pack(keys, self.key_bits), pack(values, self.value_bits)]
    }

    fn unpack(&self, pages: &[Packed], head_dim: usize) -> [Tensor<3>; 2] {
        let rotation = Rotation::new(head_dim, &pages[0].words.device());
        let unpack = |packed, bits| decode(packed, head_dim, bits, &rotation);
        [unpack(&pages[0], self.key_bits), unpack(&pages[1], self.value_bits)]
    }
}

/// The upper half of the codebook for a normal number of variance 1: the 2ᵇ numbers that minimise
/// the expected squared error. Each is the mean of the numbers that are rounded to it (Max, 1960,
/// *Quantizing for Minimum Distortion*, table I, with more digits).
fn codebook(bits: u8) -> &'static [f64] {
    match bits {
        2 => &[0.452780035, 1.510417608],
        3 => &[0.245094179, 0.756005281, 1.343909279, 2.151945705],
        _ => &[
            0.128395030,
            0.388048299,
            0.656759119,
            0.942340456,
            1.256231197,
            1.618046386,
            2.069017227,
            2.732589571,
        ],
    }
}

/// The whole codebook, ascending.
fn levels(bits: u8) -> Vec<f64> {
    let upper = codebook(bits);
    upper.iter().rev().map(|x| -x).chain(upper.iter().copied()).collect()
}

/// Encodes vectors, `[pages, rows, channels]`, as levels in words with one norm each.
fn encode(x: Tensor<3>, bits: u8, rotation: &Rotation, dtype: DType) -> Packed {
    let [pages, rows, channels] = x.dims();
    let x: Tensor<2> = x.cast(DType::F32).reshape([pages * rows, channels]);
    let norm = (x.clone() * x.clone()).sum_dim(1).sqrt();
    let step = norm.clone().mask_fill(norm.clone().equal_scalar(0.0), 1.0);
    let rotated = rotation.forth(x / step) * (channels as f64).sqrt();
    // A number's level is how many of the middles between two levels lie below it.
    let middles = levels(bits).windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect::<Vec<_>>();
    let above = middles.iter().map(|&middle| rotated.clone().greater_scalar(middle).int());
    let level = above.reduce(|a, b| a + b).unwrap_or_else(|| rotated.clone().int());
    let words = pack_words(level.reshape([pages, rows, channels]), bits);
    let width = words.dims()[2];
    Packed {
        words: words.reshape([pages, rows * width]),
        measures: vec![norm.reshape([pages, rows]).cast(dtype)],
    }
}

fn decode(packed: &Packed, channels: usize, bits: u8, rotation: &Rotation) -> Tensor<3> {
    let [pages, width] = packed.words.dims();
    let [_, rows] = packed.measures[0].dims();
    let words = packed.words.clone().reshape([pages, rows, width / rows]);
    let level = unpack_words(words, channels, bits).reshape([pages * rows * channels]);
    let device = level.device();
    let numbers: Vec<f32> = levels(bits).into_iter().map(|x| x as f32).collect();
    let count = numbers.len();
    let table = Tensor::<1>::from_data(TensorData::new(numbers, [count]), (&device, DType::F32));
    let integers: DType = device.settings().int_dtype.into();
    let rotated = table.select(0, level.cast(integers)).reshape([pages * rows, channels]);
    let unit = rotation.back(rotated / (channels as f64).sqrt());
    let norms = packed.measures[0].clone().cast(DType::F32).reshape([pages * rows, 1]);
    (unit * norms).reshape([pages, rows, channels])
}
