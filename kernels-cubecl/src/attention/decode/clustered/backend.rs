// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use burn::backend::{
    Backend, TensorMetadata, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{
    backend::fusion::custom::TensorSpec,
    tensor::{DType, Shape},
};
use burn_cubecl::CubeBackend;

use super::launch::launch;
use crate::attention::decode::split::{Members, Rows, Turn};

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait SharedAttentionBackend: Backend {
    /// See [`super::clustered`]. Without `encoded`, positions, cosines and sines are not looked at.
    #[fusion(meta = outputs)]
    fn shared_attention(
        queries: FloatTensor<Self>,
        directions: FloatTensor<Self>,
        values: FloatTensor<Self>,
        members: IntTensor<Self>,
        entry: IntTensor<Self>,
        norms: FloatTensor<Self>,
        fillers: IntTensor<Self>,
        offsets: IntTensor<Self>,
        positions: IntTensor<Self>,
        cosines: FloatTensor<Self>,
        sines: FloatTensor<Self>,
        tail_keys: FloatTensor<Self>,
        tail_values: FloatTensor<Self>,
        encoded: bool,
        tail: usize,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// What [`SharedAttentionBackend::shared_attention`] will return, for a fusion that has not run it yet.
#[cfg(feature = "fusion")]
fn outputs(
    queries: &TensorSpec,
    _directions: &TensorSpec,
    _values: &TensorSpec,
    members: &TensorSpec,
    _entry: &TensorSpec,
    _norms: &TensorSpec,
    _fillers: &TensorSpec,
    _offsets: &TensorSpec,
    _positions: &TensorSpec,
    _cosines: &TensorSpec,
    _sines: &TensorSpec,
    tail_keys: &TensorSpec,
    _tail_values: &TensorSpec,
    _encoded: &bool,
    tail: &usize,
    _scale: &f32,
    weights: &bool,
) -> (TensorSpec, TensorSpec) {
    use crate::attention::decode::split::{self, Heads};
    let heads = Heads::of(&queries.shape, &tail_keys.shape);
    let shape = split::weight_shape(heads, members.shape[2] + tail, *weights);
    (queries.clone(), TensorSpec::new(Shape::from(shape), DType::F32))
}

impl SharedAttentionBackend for CubeBackend {
    fn shared_attention(
        queries: FloatTensor<Self>,
        directions: FloatTensor<Self>,
        values: FloatTensor<Self>,
        members: IntTensor<Self>,
        entry: IntTensor<Self>,
        norms: FloatTensor<Self>,
        fillers: IntTensor<Self>,
        offsets: IntTensor<Self>,
        positions: IntTensor<Self>,
        cosines: FloatTensor<Self>,
        sines: FloatTensor<Self>,
        tail_keys: FloatTensor<Self>,
        tail_values: FloatTensor<Self>,
        encoded: bool,
        tail: usize,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let columns = members.shape()[2] + tail;
        let rows = Rows {
            queries,
            members: Some(Members { directions, values, members, entry, norms, offsets }),
            starts: fillers,
            turn: encoded.then_some(Turn { cosines, sines, positions }),
            tail_keys,
            tail_values,
            tail,
            columns,
            scale,
            wanted: weights,
        };
        launch(rows)
    }
}
