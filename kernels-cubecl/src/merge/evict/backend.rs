// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments, clippy::type_complexity)]

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

#[cfg(feature = "fusion")]
use super::{
    launch::NOWHERE,
    operands::{BeforeMetadata, LimitsMetadata, NewRowsMetadata},
};
use super::{
    launch::{Changed, launch, launch_merging, launch_spread},
    operands::{Before, Limits, NewRows},
};

/// The kernels as operations of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait EvictBackend: Backend {
    /// See [`super::evict`]: keys, values, positions and statistics.
    #[fusion(meta = changed)]
    fn evict(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        statistics: FloatTensor<Self>,
        counted: FloatTensor<Self>,
        scores: FloatTensor<Self>,
        #[extension_type] new: NewRows<Self>,
        #[extension_type] limits: Limits<Self>,
        is_tracked: bool,
        has_free_slots: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, IntTensor<Self>, FloatTensor<Self>);

    /// See [`super::evict_merging`]: the same, and thresholds.
    #[fusion(meta = changed_and_threshold)]
    fn evict_merging(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        statistics: FloatTensor<Self>,
        counted: FloatTensor<Self>,
        scores: FloatTensor<Self>,
        #[extension_type] new: NewRows<Self>,
        #[extension_type] limits: Limits<Self>,
        #[extension_type] before: Before<Self>,
        beta: f32,
        is_tracked: bool,
        has_free_slots: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, IntTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// See [`super::evict_spreading`], of which this is the first launch: values, and those of new
    /// tokens that lie beside them.
    #[fusion(meta = values_and_new)]
    fn spread(
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        scores: FloatTensor<Self>,
        #[extension_type] new: NewRows<Self>,
        #[extension_type] limits: Limits<Self>,
        attention: FloatTensor<Self>,
        drawn: FloatTensor<Self>,
        window: usize,
        has_free_slots: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes and types of the outputs of [`EvictBackend::evict`], for fusion.
#[cfg(feature = "fusion")]
fn changed(
    keys: &TensorSpec,
    values: &TensorSpec,
    positions: &TensorSpec,
    statistics: &TensorSpec,
    _counted: &TensorSpec,
    _scores: &TensorSpec,
    _new: &NewRowsMetadata,
    _limits: &LimitsMetadata,
    _is_tracked: &bool,
    _has_free_slots: &bool,
) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec) {
    (keys.clone(), values.clone(), positions.clone(), statistics.clone())
}

/// Shapes and types of the outputs of [`EvictBackend::spread`], for fusion.
#[cfg(feature = "fusion")]
fn values_and_new(
    values: &TensorSpec,
    _positions: &TensorSpec,
    _scores: &TensorSpec,
    new: &NewRowsMetadata,
    _limits: &LimitsMetadata,
    _attention: &TensorSpec,
    _drawn: &TensorSpec,
    _window: &usize,
    _has_free_slots: &bool,
) -> (TensorSpec, TensorSpec) {
    let new = match new {
        NewRowsMetadata::Behind => TensorSpec::new(Shape::from(NOWHERE), values.dtype),
        NewRowsMetadata::Beside { values, .. } => values.clone(),
    };
    (values.clone(), new)
}

/// Shapes and types of the outputs of [`EvictBackend::evict_merging`], for fusion.
#[cfg(feature = "fusion")]
fn changed_and_threshold(
    keys: &TensorSpec,
    values: &TensorSpec,
    positions: &TensorSpec,
    statistics: &TensorSpec,
    _counted: &TensorSpec,
    scores: &TensorSpec,
    _new: &NewRowsMetadata,
    _limits: &LimitsMetadata,
    _before: &BeforeMetadata,
    _beta: &f32,
    _is_tracked: &bool,
    _has_free_slots: &bool,
) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec, TensorSpec) {
    let threshold = TensorSpec::new(Shape::from([scores.shape[0], 1]), DType::F32);
    (keys.clone(), values.clone(), positions.clone(), statistics.clone(), threshold)
}

impl EvictBackend for CubeBackend {
    fn evict(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        statistics: FloatTensor<Self>,
        counted: FloatTensor<Self>,
        scores: FloatTensor<Self>,
        new: NewRows<Self>,
        limits: Limits<Self>,
        is_tracked: bool,
        has_free_slots: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, IntTensor<Self>, FloatTensor<Self>) {
        let changed = Changed::new(keys, values, positions, statistics, is_tracked, has_free_slots);
        launch(changed, counted, scores, new, limits).into()
    }

    fn evict_merging(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        statistics: FloatTensor<Self>,
        counted: FloatTensor<Self>,
        scores: FloatTensor<Self>,
        new: NewRows<Self>,
        limits: Limits<Self>,
        before: Before<Self>,
        beta: f32,
        is_tracked: bool,
        has_free_slots: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, IntTensor<Self>, FloatTensor<Self>, FloatTensor<Self>)
    {
        let changed = Changed::new(keys, values, positions, statistics, is_tracked, has_free_slots);
        let (changed, threshold) =
            launch_merging(changed, counted, scores, new, limits, before, beta);
        let (keys, values, positions, statistics) = changed.into();
        (keys, values, positions, statistics, threshold)
    }

    fn spread(
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        scores: FloatTensor<Self>,
        new: NewRows<Self>,
        limits: Limits<Self>,
        attention: FloatTensor<Self>,
        drawn: FloatTensor<Self>,
        window: usize,
        has_free_slots: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        launch_spread(
            values,
            positions,
            scores,
            new,
            limits,
            [attention, drawn],
            window,
            has_free_slots,
        )
    }
}
