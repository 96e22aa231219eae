// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments, clippy::type_complexity)]

use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{backend::fusion::custom::TensorSpec, tensor::DType};
use burn_cubecl::CubeBackend;

use super::launch::launch;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait ReorderTokensBackend: Backend {
    /// See [`super::reorder_tokens`]: positions, clusters, representatives, norms, and statistics,
    /// which are only looked at if something was `counted`. Of each head `padding` clusters and
    /// `before` columns are missing, or as many as `missing` says where they `differ`.
    #[fusion(meta = outputs)]
    fn reorder_tokens(
        columns: IntTensor<Self>,
        clusters: IntTensor<Self>,
        order: IntTensor<Self>,
        rows: IntTensor<Self>,
        representatives: IntTensor<Self>,
        missing: IntTensor<Self>,
        positions: IntTensor<Self>,
        norms: FloatTensor<Self>,
        lengths: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        counted: bool,
        padding: usize,
        before: usize,
        differ: bool,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes and types of the outputs of [`ReorderTokensBackend::reorder_tokens`], for fusion.
#[cfg(feature = "fusion")]
fn outputs(
    columns: &TensorSpec,
    _classes: &TensorSpec,
    _order: &TensorSpec,
    _rows: &TensorSpec,
    representatives: &TensorSpec,
    _missing: &TensorSpec,
    _positions: &TensorSpec,
    _norms: &TensorSpec,
    _lengths: &TensorSpec,
    statistics: &TensorSpec,
    counted: &bool,
    _padding: &usize,
    _before: &usize,
    _differ: &bool,
) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec, TensorSpec) {
    let width = columns.shape[2];
    let f32 = |shape| TensorSpec::new(shape, DType::F32);
    let of_statistics = if *counted {
        super::launch::of_width(&statistics.shape, width)
    } else {
        super::launch::no_statistics()
    };
    (
        columns.clone(),
        columns.clone(),
        representatives.clone(),
        f32(columns.shape.clone()),
        f32(of_statistics),
    )
}

impl ReorderTokensBackend for CubeBackend {
    fn reorder_tokens(
        columns: IntTensor<Self>,
        clusters: IntTensor<Self>,
        order: IntTensor<Self>,
        rows: IntTensor<Self>,
        representatives: IntTensor<Self>,
        missing: IntTensor<Self>,
        positions: IntTensor<Self>,
        norms: FloatTensor<Self>,
        lengths: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        counted: bool,
        padding: usize,
        before: usize,
        differ: bool,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>, FloatTensor<Self>, FloatTensor<Self>)
    {
        let statistics = counted.then_some(statistics);
        let ints = [columns, clusters, order, rows, representatives, missing, positions];
        launch(ints, [norms, lengths], statistics, [padding, before], differ)
    }
}
