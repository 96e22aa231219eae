// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments, clippy::type_complexity)]

#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
use burn_cubecl::CubeBackend;

use super::launch::{Buffers, Column, New, launch};

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait AppendBackend: Backend {
    /// See [`super::append`]: keys, values, positions, statistics, and what is counted.
    #[fusion(meta = changed)]
    fn append(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        statistics: FloatTensor<Self>,
        counted: IntTensor<Self>,
        new_keys: FloatTensor<Self>,
        new_values: FloatTensor<Self>,
        new_positions: IntTensor<Self>,
        column: Column,
        is_tracked: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, IntTensor<Self>, FloatTensor<Self>, IntTensor<Self>);
}

/// Shapes and types of the outputs, for fusion.
#[cfg(feature = "fusion")]
fn changed(
    keys: &TensorSpec,
    values: &TensorSpec,
    positions: &TensorSpec,
    statistics: &TensorSpec,
    counted: &TensorSpec,
    _new_keys: &TensorSpec,
    _new_values: &TensorSpec,
    _new_positions: &TensorSpec,
    _column: &Column,
    _is_tracked: &bool,
) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec, TensorSpec) {
    (keys.clone(), values.clone(), positions.clone(), statistics.clone(), counted.clone())
}

impl AppendBackend for CubeBackend {
    fn append(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        statistics: FloatTensor<Self>,
        counted: IntTensor<Self>,
        new_keys: FloatTensor<Self>,
        new_values: FloatTensor<Self>,
        new_positions: IntTensor<Self>,
        column: Column,
        is_tracked: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, IntTensor<Self>, FloatTensor<Self>, IntTensor<Self>)
    {
        let new = New { keys: new_keys, values: new_values, positions: new_positions };
        let buffers = Buffers { keys, values, positions, statistics, counted };
        let Buffers { keys, values, positions, statistics, counted } =
            launch(buffers, new, column, is_tracked);
        (keys, values, positions, statistics, counted)
    }
}
