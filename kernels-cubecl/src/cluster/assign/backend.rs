// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use super::kernel;
use crate::common::backend::*;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait AssignClustersBackend: Backend {
    /// See [`super::assign_clusters`]: clusters and ranks. A head lacks `padding` clusters, has
    /// `merging` rows to be merged, and its clusters are counted from `first` on; or what `held`
    /// says where heads `differ`.
    #[fusion(meta = |rows, _kept_rows, _merged, _nearest, _representatives, _held, _positions,
        _similarity, _scores, _padding, _merging, _first, _threshold, _merges, _differ| {
        (rows.clone(), TensorSpec::new(rows.shape.clone(), DType::F32))
    })]
    fn assign_clusters(
        rows: IntTensor<Self>,
        kept_rows: IntTensor<Self>,
        merged: IntTensor<Self>,
        nearest: IntTensor<Self>,
        representatives: IntTensor<Self>,
        held: IntTensor<Self>,
        positions: IntTensor<Self>,
        similarity: FloatTensor<Self>,
        scores: FloatTensor<Self>,
        padding: usize,
        merging: usize,
        first: usize,
        threshold: f32,
        merges: bool,
        differ: bool,
    ) -> (IntTensor<Self>, FloatTensor<Self>);
}

impl AssignClustersBackend for CubeBackend {
    fn assign_clusters(
        rows: IntTensor<Self>,
        kept_rows: IntTensor<Self>,
        merged: IntTensor<Self>,
        nearest: IntTensor<Self>,
        representatives: IntTensor<Self>,
        held: IntTensor<Self>,
        positions: IntTensor<Self>,
        similarity: FloatTensor<Self>,
        scores: FloatTensor<Self>,
        padding: usize,
        merging: usize,
        first: usize,
        threshold: f32,
        merges: bool,
        differ: bool,
    ) -> (IntTensor<Self>, FloatTensor<Self>) {
        let (client, shape, dtype) = (scores.client.clone(), rows.shape(), rows.dtype);
        let [clusters, ranks] =
            [dtype, DType::F32].map(|dtype| empty(&scores, shape.clone(), dtype));
        let cubes = shape[2].div_ceil(kernel::UNITS);
        kernel::assign_clusters::launch(
            &client,
            CubeCount::Static(cubes as u32, (shape[0] * shape[1]) as u32, 1),
            CubeDim::new_1d(kernel::UNITS as u32),
            rows.into_tensor_arg(),
            kept_rows.into_tensor_arg(),
            merged.into_tensor_arg(),
            nearest.into_tensor_arg(),
            representatives.into_tensor_arg(),
            held.into_tensor_arg(),
            positions.into_tensor_arg(),
            similarity.into_tensor_arg(),
            scores.into_tensor_arg(),
            clusters.clone().into_tensor_arg(),
            ranks.clone().into_tensor_arg(),
            padding,
            merging,
            first,
            threshold,
            merges,
            differ,
            dtype_to_storage_type(dtype),
        );
        (clusters, ranks)
    }
}
