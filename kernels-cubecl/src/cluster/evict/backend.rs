use briquette_ops::EvictClusterInput;

use super::{
    find,
    head::BoundsLaunch,
    operands::{Changed, Limits, Read},
    table,
};
use crate::common::{
    backend::*, copy_rows::vector_size, eviction::weakest::UNITS, rows::cube_count,
    writable::writable,
};

/// The kernels as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait EvictClusterBackend: Backend {
    /// See [`super::evict_cluster`].
    #[fusion(meta = |changed, _read, _threshold| changed.clone())]
    fn evict_cluster(
        #[extension_type] changed: Changed<Self>,
        #[extension_type] read: Read<Self>,
        threshold: f32,
    ) -> Changed<Self>;
}

impl Changed<CubeBackend> {
    /// The same in buffers that nobody else reads.
    fn writable(self) -> Self {
        let statistics = self.statistics;
        Self {
            directions: writable(self.directions),
            values: writable(self.values),
            positions: writable(self.positions),
            clusters: writable(self.clusters),
            norms: writable(self.norms),
            representatives: writable(self.representatives),
            tokens_by_cluster: writable(self.tokens_by_cluster),
            padding_columns: writable(self.padding_columns),
            statistics: if self.is_tracked { writable(statistics) } else { statistics },
            is_tracked: self.is_tracked,
        }
    }
}

impl EvictClusterBackend for CubeBackend {
    fn evict_cluster(changed: Changed<Self>, read: Read<Self>, threshold: f32) -> Changed<Self> {
        let changed = changed.writable();
        let Read { counted, scores, offsets, new_keys, new_values, new_positions, limits } = read;
        let client = changed.directions.client.clone();
        let shape = changed.positions.shape();
        let (batch, heads, columns) = (shape[0], shape[1], shape[2]);
        let height = changed.representatives.shape()[2];
        let channels = changed.directions.shape()[1];
        let ints = changed.positions.dtype;
        let of_heads = |numbers, dtype| empty(&scores, [batch, heads, numbers], dtype);
        let (ages, ranks) = (of_heads(height + 1, ints), of_heads(height + 1, DType::F32));
        let (places, redundancy) = (of_heads(2, ints), of_heads(1, DType::F32));
        let (numbers, limits, differ) = match limits {
            Limits::Alike { numbers } => (numbers, scores.clone(), false),
            Limits::Differ { table } => ([0; 4], table, true),
        };
        let [sinks, recent, before, most] = numbers;
        let bounds = || BoundsLaunch::new(sinks, recent, before, most, differ);
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
            bounds(),
            channels / vector,
            vector,
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
            bounds(),
            threshold,
            least_weight,
            most_weight,
            table::share(columns),
            changed.is_tracked,
            types,
        );
        changed
    }
}
