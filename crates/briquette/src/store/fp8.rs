use burn::tensor::{DType, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::{
    Store, StoreBuilder, StoreOptions,
    codec::Codec,
    packed::{Packed, Widths},
    paged::PagedStore,
    words,
};
use crate::{
    Result,
    ops::{PackedNumbers, PackedVectors, constant_floats, of_e4m3},
    prefix::Parts,
};

/// Tokens of a page.
const PAGE: usize = 32;
/// The largest number of the type.
const LARGEST: f64 = 448.0;
/// The exponent of the smallest normal number, and below.
const LOWEST: i32 = -6;
/// The exponent of the largest.
const HIGHEST: i32 = 8;
/// Bits of the mantissa, and what is added to the exponent.
const MANTISSA: i32 = 3;
const BIAS: i32 = 7;

/// Entries in 8-bit floating point, E4M3 (Micikevicius et al., 2022, *FP8 Formats for Deep
/// Learning*, [arXiv 2209.05433](https://arxiv.org/abs/2209.05433)), with a scale a vector.
///
/// A key, or a value, is divided by its largest magnitude over 448, the largest number of the type,
/// and rounded to the nearest, halves to even. Four numbers are a 32-bit word; they are converted
/// by tensor operations, so that no device needs the type. The last tokens, fewer than a page of
/// 32, are held as they came.
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
        let widths = || Widths { words: PAGE * words::width(head_dim, 8), measures: vec![PAGE] };
        vec![widths(), widths()]
    }

    fn pack(
        &self,
        keys: Tensor<3>,
        values: Tensor<3>,
        _channels: Option<Tensor<2, Int>>,
        dtype: DType,
    ) -> Vec<Packed> {
        vec![encode(keys, dtype), encode(values, dtype)]
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

/// Vectors, `[pages, rows, channels]`, as bytes in words and a scale each.
fn encode(x: Tensor<3>, dtype: DType) -> Packed {
    let [pages, rows, channels] = x.dims();
    let device = x.device();
    let x = x.cast(DType::F32);
    // What is held is what the numbers are measured by.
    let scale = (x.clone().abs().max_dim(2) / LARGEST).cast(dtype);
    let held = scale.clone().cast(DType::F32);
    let step = held.clone().mask_fill(held.equal_scalar(0.0), 1.0);
    let x = (x / step).clamp(-LARGEST, LARGEST);

    let size = x.clone().abs();
    let log = size.clone().clamp_min(2f64.powi(LOWEST)).log() / std::f64::consts::LN_2;
    // One less than it should be for a power of two gives the same byte: the mantissa is carried
    // over.
    let exponent = log.floor().int().clamp(LOWEST, HIGHEST);
    let units: Vec<f32> = (LOWEST..=HIGHEST).map(|e| 2f32.powi(e - MANTISSA)).collect();
    let count = units.len();
    let units = constant_floats("units of E4M3", units, [count], &device);
    let numbers = pages * rows * channels;
    let place = (exponent.clone() - LOWEST).reshape([numbers]);
    let unit = units.select(0, place).reshape([pages, rows, channels]);
    let mantissa = (size / unit).round().int();
    let magnitude = (exponent + BIAS) * (1 << MANTISSA) + mantissa - (1 << MANTISSA);
    let sign = x.lower_scalar(0.0).int() * 128;
    let words = words::pack(magnitude.clamp(0, 126) + sign, 8);
    let width = words.dims()[2];
    Packed {
        words: words.reshape([pages, rows * width]),
        measures: vec![scale.reshape([pages, rows])],
    }
}

fn decode(packed: &Packed, channels: usize) -> Tensor<3> {
    let [pages, width] = packed.words.dims();
    let [_, rows] = packed.measures[0].dims();
    let words = packed.words.clone().reshape([pages, rows, width / rows]);
    let bytes = words::unpack(words, channels, 8).reshape([pages * rows * channels]);
    let device = bytes.device();
    let table: Vec<f32> = (0..=255).map(of_e4m3).collect();
    let table = constant_floats("numbers of E4M3", table, [256], &device);
    let integers: DType = device.settings().int_dtype.into();
    let numbers: Tensor<3> = table.select(0, bytes.cast(integers)).reshape([pages, rows, channels]);
    numbers * packed.measures[0].clone().cast(DType::F32).reshape([pages, rows, 1])
}
