use burn_cubecl::kernel::into_contiguous_aligned;

use super::kernel;
use crate::common::{
    backend::*,
    copy_rows::{UNITS, rows_of_cube, vector_size},
    writable::writable,
};

/// Rows that are merged into others, their weights and where they go.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) struct Others<B: Backend> {
    pub(super) keys: FloatTensor<B>,
    pub(super) values: FloatTensor<B>,
    pub(super) weights: FloatTensor<B>,
    pub(super) slot: IntTensor<B>,
}

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait MergeBackend: Backend {
    /// See [`super::merge`]. Keys and values that nobody else has are changed in place.
    #[fusion(meta = |keys, values, _own, _others, _directions| (keys.clone(), values.clone()))]
    fn merge(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        own: FloatTensor<Self>,
        #[extension_type] others: Others<Self>,
        directions: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl MergeBackend for CubeBackend {
    fn merge(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        own: FloatTensor<Self>,
        others: Others<Self>,
        directions: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [keys, values] = [keys, values].map(|rows| writable(into_contiguous_aligned(rows)));
        let (client, shape) = (keys.client.clone(), keys.shape());
        let (lists, rows, channels) = (shape[0] * shape[1], shape[2], shape[3]);
        if directions {
            let vector = vector_size([&keys]);
            let vectors = channels / vector;
            let rows_of_cube = rows_of_cube(vectors);
            kernel::unit_rows::launch(
                &client,
                CubeCount::Static(rows.div_ceil(rows_of_cube) as u32, lists as u32, 1),
                CubeDim::new_1d(UNITS as u32),
                vector,
                keys.clone().into_tensor_arg(),
                rows,
                vectors,
                rows_of_cube,
                dtype_to_storage_type(keys.dtype),
            );
        }
        let types = [keys.dtype, values.dtype, others.slot.dtype].map(dtype_to_storage_type);
        let count = others.weights.shape()[2];
        kernel::merge::launch(
            &client,
            CubeCount::Static(count as u32, lists as u32, 1),
            CubeDim::new_1d(kernel::UNITS as u32),
            keys.clone().into_tensor_arg(),
            values.clone().into_tensor_arg(),
            own.into_tensor_arg(),
            others.keys.into_tensor_arg(),
            others.values.into_tensor_arg(),
            others.weights.into_tensor_arg(),
            others.slot.into_tensor_arg(),
            channels,
            channels.div_ceil(kernel::UNITS),
            directions,
            types,
        );
        (keys, values)
    }
}
