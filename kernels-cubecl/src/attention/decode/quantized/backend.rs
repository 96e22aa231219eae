// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{
    backend::fusion::custom::TensorSpec,
    tensor::{DType, Shape},
};
use burn_cubecl::CubeBackend;

use super::launch::{Call, Packed, launch};

/// The kernels as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait QuantizedAttentionBackend: Backend {
    /// See [`super::quantized`].
    #[fusion(meta = outputs)]
    fn quantized_attention(
        queries: FloatTensor<Self>,
        key_words: IntTensor<Self>,
        key_scale: FloatTensor<Self>,
        key_min: FloatTensor<Self>,
        value_words: IntTensor<Self>,
        value_scale: FloatTensor<Self>,
        value_min: FloatTensor<Self>,
        pages: IntTensor<Self>,
        offsets: IntTensor<Self>,
        tail_fillers: IntTensor<Self>,
        tail_keys: FloatTensor<Self>,
        tail_values: FloatTensor<Self>,
        bits: usize,
        group: usize,
        most_pages: usize,
        columns: usize,
        tail: usize,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// What [`QuantizedAttentionBackend::quantized_attention`] will return, for a fusion that has not run it yet.
#[cfg(feature = "fusion")]
fn outputs(
    queries: &TensorSpec,
    _key_words: &TensorSpec,
    _key_scale: &TensorSpec,
    _key_min: &TensorSpec,
    _value_words: &TensorSpec,
    _value_scale: &TensorSpec,
    _value_min: &TensorSpec,
    _pages: &TensorSpec,
    _offsets: &TensorSpec,
    _tail_fillers: &TensorSpec,
    tail_keys: &TensorSpec,
    _tail_values: &TensorSpec,
    _bits: &usize,
    _group: &usize,
    _most_pages: &usize,
    columns: &usize,
    _tail: &usize,
    _scale: &f32,
    weights: &bool,
) -> (TensorSpec, TensorSpec) {
    let heads = crate::attention::decode::split::Heads::of(&queries.shape, &tail_keys.shape);
    let shape = crate::attention::decode::split::weight_shape(heads, *columns, *weights);
    (queries.clone(), TensorSpec::new(Shape::from(shape), DType::F32))
}

impl QuantizedAttentionBackend for CubeBackend {
    fn quantized_attention(
        queries: FloatTensor<Self>,
        key_words: IntTensor<Self>,
        key_scale: FloatTensor<Self>,
        key_min: FloatTensor<Self>,
        value_words: IntTensor<Self>,
        value_scale: FloatTensor<Self>,
        value_min: FloatTensor<Self>,
        pages: IntTensor<Self>,
        offsets: IntTensor<Self>,
        tail_fillers: IntTensor<Self>,
        tail_keys: FloatTensor<Self>,
        tail_values: FloatTensor<Self>,
        bits: usize,
        group: usize,
        most_pages: usize,
        columns: usize,
        tail: usize,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        launch(Call {
            queries,
            keys: Packed { words: key_words, scale: key_scale, min: key_min },
            values: Packed { words: value_words, scale: value_scale, min: value_min },
            pages,
            offsets,
            tail_fillers,
            tail_keys,
            tail_values,
            bits,
            group,
            most_pages,
            columns,
            tail,
            scale,
            wanted: weights,
        })
    }
}
