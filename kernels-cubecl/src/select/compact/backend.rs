use super::kernel;
use crate::common::{
    backend::*,
    copy_rows::{UNITS, rows_of_cube, vector_size},
};

/// Entries with what is known of them.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) struct EntryTensors<B: Backend> {
    pub(super) keys: FloatTensor<B>,
    pub(super) values: FloatTensor<B>,
    pub(super) positions: IntTensor<B>,
    pub(super) statistics: FloatTensor<B>,
    /// Whether there are statistics, and not a tensor that stands in for them.
    pub(super) is_counted: bool,
}

/// Compaction as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait CompactBackend: Backend {
    /// See [`super::compact`]. Padding is only looked at if places are `filled`.
    #[fusion(meta = |entries, indices, _padding, _filled| kept(entries, indices.shape[2]))]
    fn compact_entries(
        #[extension_type] entries: EntryTensors<Self>,
        indices: IntTensor<Self>,
        padding: IntTensor<Self>,
        filled: bool,
    ) -> EntryTensors<Self>;
}

/// Shapes of so many kept entries, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn kept(entries: &EntryTensorsMetadata, columns: usize) -> EntryTensorsMetadata {
    let with = |x: &TensorSpec| TensorSpec::new(with_columns(&x.shape, columns), x.dtype);
    let nothing = TensorSpec::new(Shape::from(NO_STATISTICS), DType::F32);
    EntryTensorsMetadata {
        keys: with(&entries.keys),
        values: with(&entries.values),
        positions: with(&entries.positions),
        statistics: if entries.is_counted { with(&entries.statistics) } else { nothing },
        is_counted: entries.is_counted,
    }
}

/// Shape of absent statistics: a buffer cannot be empty.
const NO_STATISTICS: [usize; 3] = [1; 3];

/// Shape with so many columns, the third dimension.
fn with_columns(shape: &Shape, columns: usize) -> Shape {
    let mut shape = shape.clone();
    shape[2] = columns;
    shape
}

impl CompactBackend for CubeBackend {
    fn compact_entries(
        entries: EntryTensors<Self>,
        indices: IntTensor<Self>,
        padding: IntTensor<Self>,
        filled: bool,
    ) -> EntryTensors<Self> {
        let EntryTensors { keys, values, positions, statistics, is_counted } = entries;
        let client = keys.client.clone();
        let shape = indices.shape();
        let (rows, columns) = (shape[0] * shape[1], shape[2]);
        let like = |x: &CubeTensor| empty(x, with_columns(&x.shape(), columns), x.dtype);
        let kept = EntryTensors::<Self> {
            keys: like(&keys),
            values: like(&values),
            positions: like(&positions),
            statistics: if is_counted {
                like(&statistics)
            } else {
                empty(&keys, NO_STATISTICS, DType::F32)
            },
            is_counted,
        };

        let vector = vector_size([&keys, &values, &kept.keys, &kept.values]);
        let vectors = keys.shape()[3] / vector;
        let row_cubes = columns.div_ceil(rows_of_cube(vectors));
        let column_cubes = columns.div_ceil(UNITS);
        let of_statistics = statistics.shape();
        let numbers = if is_counted { of_statistics[0] * of_statistics[1] / rows } else { 0 };
        let cubes = row_cubes + (1 + numbers) * column_cubes;
        let types = [keys.dtype, values.dtype, indices.dtype].map(dtype_to_storage_type);
        kernel::compact::launch(
            &client,
            CubeCount::Static(rows as u32, cubes as u32, 1),
            CubeDim::new_1d(UNITS as u32),
            vector,
            keys.into_tensor_arg(),
            values.into_tensor_arg(),
            positions.into_tensor_arg(),
            statistics.into_tensor_arg(),
            indices.into_tensor_arg(),
            padding.into_tensor_arg(),
            kept.keys.clone().into_tensor_arg(),
            kept.values.clone().into_tensor_arg(),
            kept.positions.clone().into_tensor_arg(),
            kept.statistics.clone().into_tensor_arg(),
            row_cubes,
            column_cubes,
            vectors,
            is_counted,
            filled,
            types,
        );
        kept
    }
}
