use burn::tensor::{DType, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::{
    Store, StoreBuilder, StoreOptions,
    codec::Codec,
    packed::{Packed, Widths},
    paged::PagedStore,
};
use crate::{
    Result,
    ops::{
        Ops, PackedNumbers, PackedVectors, constant_floats, of_e4m3, quantize_fp8, unpack_words,
        words_of,
    },
    prefix::Parts,
};

/// Tokens of a page.
const PAGE: usize = 32;

/// Entries in 8-bit floating point, E4M3 (Micikevicius et al., 2022, *FP8 Formats for Deep
/// Learning*, [arXiv 2209.05433](https://arxiv.org/abs/2209.05433)), with one scale per vector.
///
/// A key, or a value, is divided by its largest magnitude over 448, the largest number of the type,
/// and rounded to the nearest, halves to even. Four numbers fill a 32-bit word. They are converted
/// by integer arithmetic, so that no device needs the type. The last tokens, fewer than a page of
/// 32, are held unpacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fp8 {}

impl StoreBuilder for Fp8 {
    fn name(&self) -> &str {
        "fp8"
    }

    fn holds_ragged_heads(&self) -> bool {
        true
    }

    fn repacks_entries(&self) -> bool {
        true
    }

    fn build(&self, options: StoreOptions) -> Box<dyn Store> {
        Box::new(PagedStore::new(*self, options))
    }

    fn restore(&self, options: StoreOptions, parts: Parts) -> Result<Option<Box<dyn Store>>> {
        Ok(Some(Box::new(PagedStore::restore(*self, options, parts)?)))
    }
}

impl Codec for Fp8 {
    fn group(&self) -> usize {
        PAGE
    }

    fn residual(&self) -> usize {
        0
    }

    fn widths(&self, head_dim: usize) -> Vec<Widths> {
        let widths = || Widths { words: PAGE * words_of(head_dim, 8), measures: vec![PAGE] };
        vec![widths(), widths()]
    }

    fn pack(
        &self,
        keys: Tensor<3>,
        values: Tensor<3>,
        _channels: Option<Tensor<2, Int>>,
        dtype: DType,
        ops: &dyn Ops,
    ) -> Vec<Packed> {
        vec![encode(keys, dtype, ops), encode(values, dtype, ops)]
    }

    fn unpack(&self, pages: &[Packed], head_dim: usize) -> [Tensor<3>; 2] {
        [0, 1].map(|which| decode(&pages[which], head_dim))
    }

    fn numbers(&self, pages: &[Packed]) -> Option<PackedNumbers> {
        let [keys, values] = pages else { return None };
        Some(PackedNumbers::Fp8 { keys: vectors(keys)?, values: vectors(values)? })
    }
}

/// The words as a kernel reads them.
fn vectors(Packed { words, measures }: &Packed) -> Option<PackedVectors> {
    let [scale] = &measures[..] else { return None };
    Some(PackedVectors { words: words.clone(), scale: scale.clone() })
}

/// Encodes vectors, `[pages, rows, channels]`, as bytes in words with one scale each.
fn encode(x: Tensor<3>, dtype: DType, ops: &dyn Ops) -> Packed {
    let found = ops.quantize_fp8(x.clone(), dtype);
    // Pages are of one shape, which no kernel refuses.
    let PackedVectors { words, scale } = found.unwrap_or_else(|_| quantize_fp8(x, dtype));
    Packed { words, measures: vec![scale] }
}

fn decode(packed: &Packed, channels: usize) -> Tensor<3> {
    let [pages, width] = packed.words.dims();
    let [_, rows] = packed.measures[0].dims();
    let words = packed.words.clone().reshape([pages, rows, width / rows]);
    let bytes = unpack_words(words, channels, 8).reshape([pages * rows * channels]);
    let device = bytes.device();
    let table: Vec<f32> = (0..=255).map(of_e4m3).collect();
    let table = constant_floats("numbers of E4M3", table, [256], &device);
    let integers: DType = device.settings().int_dtype.into();
    let numbers: Tensor<3> = table.select(0, bytes.cast(integers)).reshape([pages, rows, channels]);
    numbers * packed.measures[0].clone().cast(DType::F32).reshape([pages, rows, 1])
}
