// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use super::kernel;
use crate::common::backend::*;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait ExtendBackend: Backend {
    /// See [`super::extend`]: rows, norms and representatives. A head holds `tokens`, `clusters`
    /// and `unclustered`, or what `counts` says where heads `differ`.
    #[fusion(meta = |cluster_of_token, _norms, _representatives, _counts, columns, rows, _tokens,
        _clusters, _unclustered, _differ| {
        let (shape, dtype) = (&cluster_of_token.shape, cluster_of_token.dtype);
        let of = |width, dtype| TensorSpec::new(Shape::from([shape[0], shape[1], width]), dtype);
        (of(*columns, dtype), of(*columns, DType::F32), of(*rows, dtype))
    })]
    fn extend(
        cluster_of_token: IntTensor<Self>,
        norms: FloatTensor<Self>,
        representatives: IntTensor<Self>,
        counts: IntTensor<Self>,
        columns: usize,
        rows: usize,
        tokens: usize,
        clusters: usize,
        unclustered: usize,
        differ: bool,
    ) -> (IntTensor<Self>, FloatTensor<Self>, IntTensor<Self>);
}

impl ExtendBackend for CubeBackend {
    fn extend(
        cluster_of_token: IntTensor<Self>,
        norms: FloatTensor<Self>,
        representatives: IntTensor<Self>,
        counts: IntTensor<Self>,
        columns: usize,
        rows: usize,
        tokens: usize,
        clusters: usize,
        unclustered: usize,
        differ: bool,
    ) -> (IntTensor<Self>, FloatTensor<Self>, IntTensor<Self>) {
        let (client, shape) = (norms.client.clone(), cluster_of_token.shape());
        let dtype = cluster_of_token.dtype;
        let of = |width, dtype| empty(&norms, [shape[0], shape[1], width], dtype);
        let (row_of, all_norms) = (of(columns, dtype), of(columns, DType::F32));
        let all_representatives = of(rows, dtype);
        let cubes = columns.max(rows).div_ceil(kernel::UNITS);
        kernel::extend::launch(
            &client,
            CubeCount::Static(cubes as u32, (shape[0] * shape[1]) as u32, 1),
            CubeDim::new_1d(kernel::UNITS as u32),
            cluster_of_token.into_tensor_arg(),
            norms.into_tensor_arg(),
            representatives.into_tensor_arg(),
            counts.into_tensor_arg(),
            row_of.clone().into_tensor_arg(),
            all_norms.clone().into_tensor_arg(),
            all_representatives.clone().into_tensor_arg(),
            tokens,
            clusters,
            unclustered,
            differ,
            dtype_to_storage_type(dtype),
        );
        (row_of, all_norms, all_representatives)
    }
}
