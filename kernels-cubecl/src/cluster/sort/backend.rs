use super::kernel;
use crate::common::backend::*;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait SortByClusterBackend: Backend {
    /// See [`super::sort_by_cluster`]: order, tokens by cluster, and the number of
    /// columns in no cluster.
    #[fusion(meta = |clusters, _number| {
        let padding_columns = Shape::from([clusters.shape[0], clusters.shape[1]]);
        (clusters.clone(), clusters.clone(), TensorSpec::new(padding_columns, clusters.dtype))
    })]
    fn sort_by_cluster(
        clusters: IntTensor<Self>,
        number: usize,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>);
}

/// Units of a cube on this device.
pub(super) fn units(client: &Client) -> Option<usize> {
    let hardware = &client.properties().hardware;
    let most = hardware.max_units_per_cube.min(hardware.max_cube_dim.0) as usize;
    // What each unit counts, and two numbers to add up by.
    let bytes = |units: usize| 4 * units * (kernel::DIGITS + 2);
    [512, 256, 128, 64]
        .into_iter()
        .find(|&units| units <= most && bytes(units) <= hardware.max_shared_memory_size)
}

impl SortByClusterBackend for CubeBackend {
    fn sort_by_cluster(
        clusters: IntTensor<Self>,
        number: usize,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        let (client, shape, dtype) = (clusters.client.clone(), clusters.shape(), clusters.dtype);
        let [order, tokens_by_cluster, scratch] =
            [(); 3].map(|()| empty(&clusters, shape.clone(), dtype));
        let padding_columns = empty(&clusters, [shape[0], shape[1]], dtype);
        let digits = (number - 1).checked_ilog2().map_or(1, |highest| highest as usize + 1);
        // Checked before.
        let units = units(&client).unwrap_or(64);
        kernel::sort_by_cluster::launch(
            &client,
            CubeCount::Static((shape[0] * shape[1]) as u32, 1, 1),
            CubeDim::new_1d(units as u32),
            clusters.into_tensor_arg(),
            order.clone().into_tensor_arg(),
            tokens_by_cluster.clone().into_tensor_arg(),
            scratch.into_tensor_arg(),
            padding_columns.clone().into_tensor_arg(),
            digits.div_ceil(kernel::BITS),
            units,
            dtype_to_storage_type(dtype),
        );
        (order, tokens_by_cluster, padding_columns)
    }
}
