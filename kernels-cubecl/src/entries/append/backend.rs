use super::kernel;
use crate::common::{backend::*, copy_rows::vector_size, rows::cube_count, writable::writable};

/// Buffers that a token is written into.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) struct Buffers<B: Backend> {
    pub(super) keys: FloatTensor<B>,
    pub(super) values: FloatTensor<B>,
    pub(super) positions: IntTensor<B>,
    pub(super) statistics: FloatTensor<B>,
    pub(super) counted: IntTensor<B>,
}

/// The new token.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) struct New<B: Backend> {
    pub(super) keys: FloatTensor<B>,
    pub(super) values: FloatTensor<B>,
    pub(super) positions: IntTensor<B>,
}

/// The column that a token is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Column {
    /// This one.
    At(usize),
    /// The one that the device has counted to.
    Counted,
    /// The one before the one that the device has counted down to.
    CountedDown,
}

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait AppendBackend: Backend {
    /// See [`super::append`].
    #[fusion(meta = |buffers, _new, _column, _is_tracked| buffers.clone())]
    fn append(
        #[extension_type] buffers: Buffers<Self>,
        #[extension_type] new: New<Self>,
        column: Column,
        is_tracked: bool,
    ) -> Buffers<Self>;
}

impl AppendBackend for CubeBackend {
    fn append(
        buffers: Buffers<Self>,
        new: New<Self>,
        column: Column,
        is_tracked: bool,
    ) -> Buffers<Self> {
        let Buffers { keys, values, positions, statistics, counted } = buffers;
        let [keys, values, positions] = [keys, values, positions].map(writable);
        let statistics = if is_tracked { writable(statistics) } else { statistics };
        let at = match column {
            Column::At(column) => Some(column),
            Column::Counted | Column::CountedDown => None,
        };
        let counted = if at.is_none() { writable(counted) } else { counted };
        let client = keys.client.clone();
        let shape = keys.shape();
        let width = vector_size([&keys, &values, &new.keys, &new.values]);
        let types = [keys.dtype, positions.dtype].map(dtype_to_storage_type);
        kernel::append::launch(
            &client,
            cube_count(shape[0] * shape[1]),
            CubeDim::new_1d(kernel::UNITS as u32),
            width,
            keys.clone().into_tensor_arg(),
            values.clone().into_tensor_arg(),
            positions.clone().into_tensor_arg(),
            statistics.clone().into_tensor_arg(),
            counted.clone().into_tensor_arg(),
            new.keys.into_tensor_arg(),
            new.values.into_tensor_arg(),
            new.positions.into_tensor_arg(),
            at.unwrap_or(0),
            shape[3] / width,
            at.is_none(),
            column == Column::CountedDown,
            is_tracked,
            types,
        );
        Buffers { keys, values, positions, statistics, counted }
    }
}
