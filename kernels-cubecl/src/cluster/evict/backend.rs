// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments, clippy::type_complexity)]

#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
use burn_cubecl::CubeBackend;

#[cfg(feature = "fusion")]
use super::operands::LimitsMetadata;
use super::{
    launch::{Changed, Outputs, Read, launch},
    operands::Limits,
};

/// The kernels as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait EvictClusterBackend: Backend {
    /// See [`super::evict_cluster`]: all that is changed.
    #[fusion(meta = changed)]
    fn evict_cluster(
        directions: FloatTensor<Self>,
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        clusters: IntTensor<Self>,
        norms: FloatTensor<Self>,
        representatives: IntTensor<Self>,
        tokens_by_cluster: IntTensor<Self>,
        padding_columns: IntTensor<Self>,
        statistics: FloatTensor<Self>,
        counted: FloatTensor<Self>,
        scores: FloatTensor<Self>,
        offsets: IntTensor<Self>,
        new_keys: FloatTensor<Self>,
        new_values: FloatTensor<Self>,
        new_positions: IntTensor<Self>,
        #[extension_type] limits: Limits<Self>,
        threshold: f32,
        is_tracked: bool,
    ) -> (
        FloatTensor<Self>,
        FloatTensor<Self>,
        IntTensor<Self>,
        IntTensor<Self>,
        FloatTensor<Self>,
        IntTensor<Self>,
        IntTensor<Self>,
        IntTensor<Self>,
        FloatTensor<Self>,
    );
}

/// Shapes and types of the outputs of [`EvictClusterBackend::evict_cluster`], for fusion.
#[cfg(feature = "fusion")]
fn changed(
    directions: &TensorSpec,
    values: &TensorSpec,
    positions: &TensorSpec,
    clusters: &TensorSpec,
    norms: &TensorSpec,
    representatives: &TensorSpec,
    tokens_by_cluster: &TensorSpec,
    padding_columns: &TensorSpec,
    statistics: &TensorSpec,
    _counted: &TensorSpec,
    _scores: &TensorSpec,
    _offsets: &TensorSpec,
    _new_keys: &TensorSpec,
    _new_values: &TensorSpec,
    _new_positions: &TensorSpec,
    _limits: &LimitsMetadata,
    _threshold: &f32,
    _is_tracked: &bool,
) -> (
    TensorSpec,
    TensorSpec,
    TensorSpec,
    TensorSpec,
    TensorSpec,
    TensorSpec,
    TensorSpec,
    TensorSpec,
    TensorSpec,
) {
    (
        directions.clone(),
        values.clone(),
        positions.clone(),
        clusters.clone(),
        norms.clone(),
        representatives.clone(),
        tokens_by_cluster.clone(),
        padding_columns.clone(),
        statistics.clone(),
    )
}

impl EvictClusterBackend for CubeBackend {
    fn evict_cluster(
        directions: FloatTensor<Self>,
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        clusters: IntTensor<Self>,
        norms: FloatTensor<Self>,
        representatives: IntTensor<Self>,
        tokens_by_cluster: IntTensor<Self>,
        padding_columns: IntTensor<Self>,
        statistics: FloatTensor<Self>,
        counted: FloatTensor<Self>,
        scores: FloatTensor<Self>,
        offsets: IntTensor<Self>,
        new_keys: FloatTensor<Self>,
        new_values: FloatTensor<Self>,
        new_positions: IntTensor<Self>,
        limits: Limits<Self>,
        threshold: f32,
        is_tracked: bool,
    ) -> Outputs {
        let rows = [directions, values];
        let ints = [positions, clusters, representatives, tokens_by_cluster, padding_columns];
        let changed = Changed::new(rows, ints, norms, statistics, is_tracked);
        let read = Read { counted, scores, offsets, new_keys, new_values, new_positions, limits };
        launch(changed, read, threshold).into()
    }
}
