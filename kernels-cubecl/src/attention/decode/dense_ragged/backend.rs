// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use burn::backend::{Backend, backend_extension, tensor::FloatTensor};
#[cfg(feature = "fusion")]
use burn::{backend::fusion::custom::TensorSpec, tensor::DType};
use burn_cubecl::CubeBackend;

#[cfg(feature = "fusion")]
use super::operands::{DecodeTensorsMetadata, EntryCountsMetadata, KvMaskMetadata};
use super::{
    launch::launch,
    operands::{DecodeTensors, EntryCounts, KvMask},
};

/// Decode attention over dense or ragged entries as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait DecodeAttentionBackend: Backend {
    /// See [`super::dense`].
    #[fusion(meta = outputs)]
    fn decode_attention(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        #[extension_type] mask: KvMask<Self>,
        #[extension_type] counts: EntryCounts<Self>,
        entries: usize,
        scale: f32,
        weights: bool,
    ) -> DecodeTensors<Self>;
}

/// Shapes of the output and the weights, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn outputs(
    queries: &TensorSpec,
    _keys: &TensorSpec,
    _values: &TensorSpec,
    mask: &KvMaskMetadata,
    _counts: &EntryCountsMetadata,
    entries: &usize,
    _scale: &f32,
    weights: &bool,
) -> DecodeTensorsMetadata {
    let output = queries.clone();
    if !weights {
        return DecodeTensorsMetadata::Plain { output };
    }
    let of_list = match mask {
        KvMaskMetadata::List { width, .. } => *width,
        KvMaskMetadata::Slots { positions, .. } => positions.shape[2],
        KvMaskMetadata::Causal | KvMaskMetadata::Positions { .. } => 0,
    };
    let shape = super::launch::weight_shape(&queries.shape, of_list + entries);
    DecodeTensorsMetadata::Weights { output, weights: TensorSpec::new(shape, DType::F32) }
}

impl DecodeAttentionBackend for CubeBackend {
    fn decode_attention(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        mask: KvMask<Self>,
        counts: EntryCounts<Self>,
        entries: usize,
        scale: f32,
        weights: bool,
    ) -> DecodeTensors<Self> {
        launch([queries, keys, values], mask, counts, entries, scale, weights)
    }
}
