use briquette_ops::EvictClusterInput;
use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{CubeBackend, ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::CubeDim;

use super::{find, operands::Limits, table};
use crate::common::{
    copy_rows::vector_size, eviction::weakest::UNITS, rows::cube_count, writable::writable,
};

/// Tensors that are changed, in buffers that nobody else reads.
pub(super) struct Changed {
    directions: CubeTensor,
    values: CubeTensor,
    positions: CubeTensor,
    clusters: CubeTensor,
    norms: CubeTensor,
    representatives: CubeTensor,
    tokens_by_cluster: CubeTensor,
    padding_columns: CubeTensor,
    statistics: CubeTensor,
    /// Whether there are statistics, and not a tensor that stands in for them.
    is_tracked: bool,
}

impl Changed {
    pub(super) fn new(
        rows: [CubeTensor; 2],
        ints: [CubeTensor; 5],
        norms: CubeTensor,
        statistics: CubeTensor,
        is_tracked: bool,
    ) -> Self {
        let [directions, values] = rows.map(writable);
        let [positions, clusters, representatives, tokens_by_cluster, padding_columns] =
            ints.map(writable);
        Self {
            directions,
            values,
            positions,
            clusters,
            norms: writable(norms),
            representatives,
            tokens_by_cluster,
            padding_columns,
            statistics: if is_tracked { writable(statistics) } else { statistics },
            is_tracked,
        }
    }
}

/// Rows, positions, clusters, norms, representatives, tokens by cluster, numbers of padding
/// columns, statistics.
pub(super) type Outputs = (
    CubeTensor,
    CubeTensor,
    CubeTensor,
    CubeTensor,
    CubeTensor,
    CubeTensor,
    CubeTensor,
    CubeTensor,
    CubeTensor,
);

impl From<Changed> for Outputs {
    fn from(changed: Changed) -> Self {
        (
            changed.directions,
            changed.values,
            changed.positions,
            changed.clusters,
            changed.norms,
            changed.representatives,
            changed.tokens_by_cluster,
            changed.padding_columns,
            changed.statistics,
        )
    }
}

/// Tensors that are read.
pub(super) struct Read {
    pub(super) counted: CubeTensor,
    pub(super) scores: CubeTensor,
    pub(super) offsets: CubeTensor,
    pub(super) new_keys: CubeTensor,
    pub(super) new_values: CubeTensor,
    pub(super) new_positions: CubeTensor,
    pub(super) limits: Limits<CubeBackend>,
}

pub(super) fn launch(changed: Changed, read: Read, threshold: f32) -> Changed {
    let Read { counted, scores, offsets, new_keys, new_values, new_positions, limits } = read;
    let client = changed.directions.client.clone();
    let shape = changed.positions.shape();
    let (batch, heads, columns) = (shape[0], shape[1], shape[2]);
    let height = changed.representatives.shape()[2];
    let channels = changed.directions.shape()[1];
    let ints = changed.positions.dtype;
    let empty = |numbers, dtype| {
        let shape = Shape::from([batch, heads, numbers]);
        empty_device_dtype(client.clone(), scores.device.clone(), shape, dtype)
    };
    let (ages, ranks) = (empty(height + 1, ints), empty(height + 1, DType::F32));
    let (places, redundancy) = (empty(2, ints), empty(1, DType::F32));
    let (numbers, limits, differ) = match limits {
        Limits::Alike { numbers } => (numbers, scores.clone(), false),
        Limits::Differ { table } => ([0; 4], table, true),
    };
    let [sinks, recent, before, most] = numbers;
    let vector = vector_size([&changed.directions, &changed.values]);
    let types = [changed.directions.dtype, ints].map(dtype_to_storage_type);
    let (cubes, units) = (cube_count(batch * heads), CubeDim::new_1d(UNITS as u32));
    find::find::launch(
        &client,
        cubes.clone(),
        units,
        changed.directions.clone().into_tensor_arg(),
        changed.values.clone().into_tensor_arg(),
        offsets.clone().into_tensor_arg(),
        changed.representatives.clone().into_tensor_arg(),
        changed.positions.clone().into_tensor_arg(),
        new_positions.clone().into_tensor_arg(),
        scores.clone().into_tensor_arg(),
        limits.clone().into_tensor_arg(),
        ages.into_tensor_arg(),
        ranks.into_tensor_arg(),
        places.clone().into_tensor_arg(),
        redundancy.clone().into_tensor_arg(),
        sinks,
        recent,
        before,
        most,
        channels / vector,
        vector,
        differ,
        types,
        vector,
    );
    let (least_weight, most_weight) = EvictClusterInput::WEIGHTS;
    table::replace::launch(
        &client,
        cubes,
        units,
        changed.directions.clone().into_tensor_arg(),
        changed.values.clone().into_tensor_arg(),
        changed.positions.clone().into_tensor_arg(),
        changed.clusters.clone().into_tensor_arg(),
        changed.norms.clone().into_tensor_arg(),
        changed.representatives.clone().into_tensor_arg(),
        changed.tokens_by_cluster.clone().into_tensor_arg(),
        changed.padding_columns.clone().into_tensor_arg(),
        changed.statistics.clone().into_tensor_arg(),
        counted.into_tensor_arg(),
        scores.into_tensor_arg(),
        offsets.into_tensor_arg(),
        new_keys.into_tensor_arg(),
        new_values.into_tensor_arg(),
        new_positions.into_tensor_arg(),
        limits.into_tensor_arg(),
        places.into_tensor_arg(),
        redundancy.into_tensor_arg(),
        sinks,
        recent,
        before,
        most,
        threshold,
        least_weight,
        most_weight,
        table::share(columns),
        changed.is_tracked,
        differ,
        types,
    );
    changed
}
