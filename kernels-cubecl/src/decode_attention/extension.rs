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

use super::launch::{Call, launch};

/// The kernel as operations of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait DecodeAttentionBackend: Backend {
    /// See [`super::decode_attention`]: every query sees the entries up to its own.
    #[fusion(meta = |queries, keys, _values, entries, _scale, weights| {
        outputs(queries, None, keys, *entries, *weights)
    })]
    fn decode_causal(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        entries: usize,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// See [`super::decode_attention`]: positions say who sees what.
    #[fusion(meta = |queries, keys, _values, _of_queries, _of_entries, entries, _scale, weights| {
        outputs(queries, None, keys, *entries, *weights)
    })]
    fn decode_by_position(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        query_positions: IntTensor<Self>,
        entry_positions: IntTensor<Self>,
        entries: usize,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// See [`super::decode_attention`]: the first entries of each head are in a list.
    #[fusion(meta = |queries, list, _values, _offsets, keys, _tail, _longest, entries, _scale, weights| {
        outputs(queries, Some(list), keys, *entries, *weights)
    })]
    fn decode_listed(
        queries: FloatTensor<Self>,
        list_keys: FloatTensor<Self>,
        list_values: FloatTensor<Self>,
        offsets: IntTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        longest: usize,
        entries: usize,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// What all will return, for a fusion that has not run them yet.
#[cfg(feature = "fusion")]
fn outputs(
    queries: &TensorSpec,
    list: Option<&TensorSpec>,
    keys: &TensorSpec,
    entries: usize,
    weights: bool,
) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec) {
    let shape = &queries.shape;
    let list = list.map(|list| &list.shape);
    let shapes = super::weight_shapes(shape, list, keys.shape[1], entries, weights);
    let [of_list, others] = shapes.map(|shape| TensorSpec::new(shape, DType::F32));
    let sums = TensorSpec::new(Shape::from([shape[0], shape[1], shape[2]]), DType::F32);
    (queries.clone(), sums, of_list, others)
}

impl DecodeAttentionBackend for CubeBackend {
    fn decode_causal(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        entries: usize,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (list, longest, positions) = (None, 0, None);
        launch(Call { queries, list, longest, keys, values, positions, entries, scale, weights })
    }

    fn decode_by_position(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        query_positions: IntTensor<Self>,
        entry_positions: IntTensor<Self>,
        entries: usize,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (list, longest) = (None, 0);
        let positions = Some([query_positions, entry_positions]);
        launch(Call { queries, list, longest, keys, values, positions, entries, scale, weights })
    }

    fn decode_listed(
        queries: FloatTensor<Self>,
        list_keys: FloatTensor<Self>,
        list_values: FloatTensor<Self>,
        offsets: IntTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        longest: usize,
        entries: usize,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let list = Some([list_keys, list_values, offsets]);
        let positions = None;
        launch(Call { queries, list, longest, keys, values, positions, entries, scale, weights })
    }
}
