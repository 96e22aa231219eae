// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments, clippy::type_complexity)]

use super::kernel;
use crate::common::backend::*;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait ReorderTokensBackend: Backend {
    /// See [`super::reorder_tokens`]: positions, clusters, representatives, norms, and statistics,
    /// which are only looked at if something was `counted`. Of each head `padding` clusters and
    /// `before` columns are missing, or as many as `missing` says where they `differ`.
    #[fusion(meta = |columns, _clusters, _order, _rows, representatives, _missing, _positions,
        _norms, _lengths, statistics, counted, _padding, _before, _differ| {
        let f32 = |shape| TensorSpec::new(shape, DType::F32);
        let norms = f32(columns.shape.clone());
        let statistics = f32(statistics_shape(&statistics.shape, columns.shape[2], *counted));
        (columns.clone(), columns.clone(), representatives.clone(), norms, statistics)
    })]
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

/// Shape of statistics of so many columns; one number if nothing was counted: a buffer cannot be
/// empty.
fn statistics_shape(statistics: &Shape, width: usize, counted: bool) -> Shape {
    Shape::from(if counted { [statistics[0], statistics[1], width] } else { [1; 3] })
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
        let (client, shape, dtype) = (columns.client.clone(), columns.shape(), columns.dtype);
        let [new_positions, new_clusters] = [(); 2].map(|()| empty(&columns, shape.clone(), dtype));
        let new_representatives = empty(&columns, representatives.shape(), dtype);
        let new_norms = empty(&columns, shape.clone(), DType::F32);
        let of_statistics = statistics_shape(&statistics.shape(), shape[2], counted);
        let new_statistics = empty(&columns, of_statistics, DType::F32);
        let cubes = shape[2].max(representatives.shape()[2]).div_ceil(kernel::UNITS);
        kernel::reorder_tokens::launch(
            &client,
            CubeCount::Static(cubes as u32, (shape[0] * shape[1]) as u32, 1),
            CubeDim::new_1d(kernel::UNITS as u32),
            columns.into_tensor_arg(),
            clusters.into_tensor_arg(),
            order.into_tensor_arg(),
            rows.into_tensor_arg(),
            representatives.into_tensor_arg(),
            missing.into_tensor_arg(),
            positions.into_tensor_arg(),
            norms.into_tensor_arg(),
            lengths.into_tensor_arg(),
            statistics.into_tensor_arg(),
            new_positions.clone().into_tensor_arg(),
            new_clusters.clone().into_tensor_arg(),
            new_representatives.clone().into_tensor_arg(),
            new_norms.clone().into_tensor_arg(),
            new_statistics.clone().into_tensor_arg(),
            padding,
            before,
            counted,
            differ,
            dtype_to_storage_type(dtype),
        );
        (new_positions, new_clusters, new_representatives, new_norms, new_statistics)
    }
}
