use super::kernel;
use crate::common::{backend::*, copy_rows};

/// Packing as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait PackBackend: Backend {
    /// See [`super::pack`]: keys and values, `total` rows of each.
    #[fusion(meta = |keys, values, _offsets, total| {
        let of = |x: &TensorSpec| TensorSpec::new(list(&x.shape, *total), x.dtype);
        (of(keys), of(values))
    })]
    fn pack(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        offsets: IntTensor<Self>,
        total: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// The shape of a list of so many rows.
fn list(rectangle: &Shape, total: usize) -> Shape {
    Shape::from([total, rectangle[3]])
}

impl PackBackend for CubeBackend {
    fn pack(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        offsets: IntTensor<Self>,
        total: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (client, dtype) = (keys.client.clone(), keys.dtype);
        let shape = keys.shape();
        let [list_keys, list_values] = [(); 2].map(|()| empty(&keys, list(&shape, total), dtype));
        let vector = copy_rows::vector_size([&keys, &values, &list_keys, &list_values]);
        let vectors = shape[3] / vector;
        let types = [dtype, offsets.dtype].map(dtype_to_storage_type);
        let cubes = shape[2].div_ceil(copy_rows::rows_of_cube(vectors));
        kernel::pack::launch(
            &client,
            CubeCount::Static((shape[0] * shape[1]) as u32, cubes as u32, 1),
            CubeDim::new_1d(copy_rows::UNITS as u32),
            vector,
            keys.into_tensor_arg(),
            values.into_tensor_arg(),
            offsets.into_tensor_arg(),
            list_keys.clone().into_tensor_arg(),
            list_values.clone().into_tensor_arg(),
            vectors,
            types,
        );
        (list_keys, list_values)
    }
}
