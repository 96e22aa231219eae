use burn::tensor::{DType, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::{
    Store, StoreBuilder, StoreOptions,
    codec::Codec,
    packed::{Packed, Widths},
    paged::PagedStore,
};
use crate::{
    CacheShape, Result, check,
    ops::{Ops, PackedGroups, PackedNumbers, QuantizeInput, quantize, unpack_words, words_of},
    prefix::Parts,
};

/// Entries quantized to 1, 2, 4 or 8 bits and packed, the last ones in full precision (KIVI; Liu et
/// al., 2024).
///
/// Keys are quantized per channel, over groups of tokens, and values per token, over groups of
/// channels. Both are quantized between the minimum and the maximum of their group (section 4).
/// Burn's own quantized tensors are symmetric, which KIVI is not, so the numbers are packed here,
/// into 32-bit words.
///
/// A head's entries are quantized one group at a time, oldest first, while at least `residual` stay
/// in full precision. When entries are dropped, the others are quantized again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantized {
    /// Bits per number: 1, 2, 4 or 8. No GPU has a kernel for 1: such pages are dequantized in
    /// every call.
    pub bits: u8,
    /// Number of tokens per group of keys, and of channels per group of values (at most
    /// `head_dim`).
    #[serde(default = "Quantized::default_group")]
    pub group: usize,
    /// Minimum number of last tokens that stay in full precision.
    #[serde(default = "Quantized::default_residual")]
    pub residual: usize,
}

impl Quantized {
    /// KIVI's own parameters: groups of 32, a residual of 128 tokens.
    pub fn kivi(bits: u8) -> Self {
        Self { bits, group: Self::default_group(), residual: Self::default_residual() }
    }

    fn default_group() -> usize {
        32
    }

    fn default_residual() -> usize {
        128
    }

    fn value_group(&self, head_dim: usize) -> usize {
        self.group.min(head_dim)
    }
}

impl StoreBuilder for Quantized {
    fn name(&self) -> &str {
        "quantized"
    }

    fn summary(&self) -> String {
        format!("{} to {} bits, last {} full", self.name(), self.bits, self.residual)
    }

    fn check(&self) -> Result<()> {
        if ![1, 2, 4, 8].contains(&self.bits) {
            return check::refuse("store.bits", self.bits, "1, 2, 4 or 8");
        }
        check::columns("store.residual", self.residual)?;
        check::columns("store.group", self.group)?;
        let word = 32 / usize::from(self.bits);
        if self.group == 0 || !self.group.is_multiple_of(word) {
            let must_be =
                format!("a multiple of {word}, the numbers of {} bits in a word", self.bits);
            return check::refuse("store.group", self.group, must_be);
        }
        Ok(())
    }

    fn check_shape(&self, shape: CacheShape) -> Result<()> {
        let group = self.value_group(shape.head_dim);
        if shape.head_dim.is_multiple_of(group) {
            return Ok(());
        }
        let must_be = format!("a divisor of the {} channels of a head, or more", shape.head_dim);
        check::refuse("store.group", self.group, must_be)
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

impl Codec for Quantized {
    fn group(&self) -> usize {
        self.group
    }

    fn residual(&self) -> usize {
        self.residual
    }

    fn widths(&self, head_dim: usize) -> Vec<Widths> {
        let of = |rows: usize, numbers: usize, group: usize| {
            let groups = rows * numbers / group;
            Widths { words: rows * words_of(numbers, self.bits), measures: vec![groups, groups] }
        };
        let values = of(self.group, head_dim, self.value_group(head_dim));
        vec![of(head_dim, self.group, self.group), values]
    }

    fn pack(
        &self,
        keys: Tensor<3>,
        values: Tensor<3>,
        _channels: Option<Tensor<2, Int>>,
        dtype: DType,
        ops: &dyn Ops,
    ) -> Vec<Packed> {
        let of = |x, group| pack(QuantizeInput { x, group, bits: self.bits, dtype }, ops);
        let of_values = self.value_group(values.dims()[2]);
        // Rows of keys are channels: their groups are tokens.
        vec![of(keys.swap_dims(1, 2), self.group), of(values, of_values)]
    }

    fn unpack(&self, pages: &[Packed], head_dim: usize) -> [Tensor<3>; 2] {
        let keys = dequantize(&pages[0], head_dim, self.group, self.bits).swap_dims(1, 2);
        [keys, dequantize(&pages[1], self.group, head_dim, self.bits)]
    }

    fn numbers(&self, pages: &[Packed]) -> Option<PackedNumbers> {
        let [keys, values] = pages else { return None };
        let (keys, values) = (groups(keys)?, groups(values)?);
        Some(PackedNumbers::Levels { keys, values, bits: usize::from(self.bits) })
    }
}

/// The words as a kernel reads them.
fn groups(Packed { words, measures }: &Packed) -> Option<PackedGroups> {
    let [scale, min] = &measures[..] else { return None };
    Some(PackedGroups { words: words.clone(), scale: scale.clone(), min: min.clone() })
}

fn pack(input: QuantizeInput, ops: &dyn Ops) -> Packed {
    let found = ops.quantize(input.clone());
    // Pages are of one shape, which no kernel refuses.
    let PackedGroups { words, scale, min } = found.unwrap_or_else(|_| quantize(input));
    Packed { words, measures: vec![scale, min] }
}

/// Dequantizes pages, f32, `[pages, rows, numbers]`.
fn dequantize(packed: &Packed, rows: usize, numbers: usize, bits: u8) -> Tensor<3> {
    let [pages, words] = packed.words.dims();
    let words = words / rows;
    let groups = packed.measures[0].dims()[1] / rows;
    let words = packed.words.clone().reshape([pages, rows, words]);
    let levels = unpack_words(words, numbers, bits).float().cast(DType::F32);
    let levels = levels.reshape([pages, rows, groups, numbers / groups]);
    let line = |x: &Tensor<2>| x.clone().cast(DType::F32).reshape([pages, rows, groups, 1]);
    (levels * line(&packed.measures[0]) + line(&packed.measures[1])).reshape([pages, rows, numbers])
}
