//! Tensors of the operation that belong together, and in kernels.

use cubecl::prelude::*;

use crate::{
    attention::scoring::{ScoreArgs, ScoreArgsLaunch},
    common::backend::*,
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

/// [`PackedTensors`] in a kernel.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Packed<W: CubePrimitive, S: CubePrimitive> {
    pub(super) words: OwnedTensor<W>,
    pub(super) scale: OwnedTensor<S>,
    pub(super) min: OwnedTensor<S>,
}

impl PackedTensors<CubeBackend> {
    pub(super) fn into_arg<W: CubePrimitive, S: CubePrimitive>(self) -> PackedLaunch<W, S> {
        PackedLaunch::new(
            self.words.into_tensor_arg(),
            self.scale.into_tensor_arg(),
            self.min.into_tensor_arg(),
        )
    }
}

/// [`VectorTensors`] in a kernel.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Vectors<W: CubePrimitive, S: CubePrimitive> {
    pub(super) words: OwnedTensor<W>,
    pub(super) scale: OwnedTensor<S>,
}

impl VectorTensors<CubeBackend> {
    pub(super) fn into_arg<W: CubePrimitive, S: CubePrimitive>(self) -> VectorsLaunch<W, S> {
        VectorsLaunch::new(self.words.into_tensor_arg(), self.scale.into_tensor_arg())
    }
}

/// What a kernel over pages has besides their numbers: queries, the list of [`Pages`], and sizes.
#[derive(CubeType, CubeLaunch)]
pub(super) struct PageInputs<Q: CubePrimitive, I: CubePrimitive> {
    pub(super) queries: OwnedTensor<Q>,
    pub(super) list: OwnedTensor<I>,
    pub(super) offsets: OwnedTensor<I>,
    pub(super) tail_padding: OwnedTensor<I>,
    pub(super) columns: usize,
    /// Rows of the tail, padding included.
    pub(super) tail: usize,
    /// Pages, or tiles, of a split.
    pub(super) share: usize,
    pub(super) scoring: ScoreArgs,
}

/// [`PageInputs`] of the queries, list, offsets and padding.
pub(super) fn page_inputs<Q: CubePrimitive, I: CubePrimitive>(
    tensors: [CubeTensor; 4],
    columns: usize,
    tail: usize,
    share: usize,
    scoring: ScoreArgsLaunch,
) -> PageInputsLaunch<Q, I> {
    let [queries, list, offsets, padding] = tensors.map(CubeTensor::into_tensor_arg);
    PageInputsLaunch::new(queries, list, offsets, padding, columns, tail, share, scoring)
}
