//! Tensors of the operation that belong together.

use burn::backend::{
    Backend, ExtensionType,
    tensor::{FloatTensor, IntTensor},
};

/// Numbers of a few bits, as [`PackedGroups`](briquette_ops::PackedGroups).
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) struct PackedTensors<B: Backend> {
    pub(super) words: IntTensor<B>,
    pub(super) scale: FloatTensor<B>,
    pub(super) min: FloatTensor<B>,
}

/// Vectors of bytes, as [`PackedVectors`](briquette_ops::PackedVectors).
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) struct VectorTensors<B: Backend> {
    pub(super) words: IntTensor<B>,
    pub(super) scale: FloatTensor<B>,
}

/// Keys and values of pages, as [`PackedNumbers`](briquette_ops::PackedNumbers).
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Numbers<B: Backend> {
    Levels {
        #[extension_type]
        keys: PackedTensors<B>,
        #[extension_type]
        values: PackedTensors<B>,
        bits: usize,
    },
    Fp8 {
        #[extension_type]
        keys: VectorTensors<B>,
        #[extension_type]
        values: VectorTensors<B>,
    },
}

/// Quantized pages, as in [`QuantizedKv`](briquette_ops::QuantizedKv).
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) struct Pages<B: Backend> {
    #[extension_type]
    pub(super) numbers: Numbers<B>,
    /// Page indices of all heads, one head after another, `[all pages]`.
    pub(super) list: IntTensor<B>,
    /// Start of the pages of each batch row and kv head in the list, and behind the last their end,
    /// `[batch · kv_heads + 1]`.
    pub(super) offsets: IntTensor<B>,
    /// Number of padding rows at the beginning of the tail, `[batch · kv_heads]`.
    pub(super) tail_padding: IntTensor<B>,
    pub(super) group: usize,
    pub(super) most_pages: usize,
    pub(super) columns: usize,
}
