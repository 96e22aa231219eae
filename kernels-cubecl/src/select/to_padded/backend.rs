use super::kernel;
use crate::common::{backend::*, copy_rows};

/// Bounds of the lists of heads.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Lists<B: Backend> {
    /// All are as long as the rectangle is wide.
    Alike,
    Differ {
        offsets: IntTensor<B>,
    },
}

/// Padding as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait PadBackend: Backend {
    /// See [`super::pad`]: keys and values.
    #[fusion(meta = |keys, values, _lists, tail_keys, _tail_values, width, tail| {
        let shape = rectangle(&tail_keys.shape, width + tail);
        (TensorSpec::new(shape.clone(), keys.dtype), TensorSpec::new(shape, values.dtype))
    })]
    fn pad_entries(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        #[extension_type] lists: Lists<Self>,
        tail_keys: FloatTensor<Self>,
        tail_values: FloatTensor<Self>,
        width: usize,
        tail: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// The shape of a rectangle beside these buffers, with so many columns.
fn rectangle(buffers: &Shape, columns: usize) -> Shape {
    Shape::from([buffers[0], buffers[1], columns, buffers[3]])
}

impl PadBackend for CubeBackend {
    fn pad_entries(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        lists: Lists<Self>,
        tail_keys: FloatTensor<Self>,
        tail_values: FloatTensor<Self>,
        width: usize,
        tail: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (client, dtype) = (keys.client.clone(), keys.dtype);
        let shape = rectangle(&tail_keys.shape(), width + tail);
        let [all_keys, all_values] = [(); 2].map(|()| empty(&keys, shape.clone(), dtype));
        let tensors = [&keys, &values, &tail_keys, &tail_values, &all_keys, &all_values];
        let vector = copy_rows::vector_size(tensors);
        let vectors = shape[3] / vector;
        let (differ, int, offsets) = match lists {
            // Never looked at: another tensor stands in.
            Lists::Alike => (false, DType::I32, keys.as_tensor_alias(0)),
            Lists::Differ { offsets } => (true, offsets.dtype, offsets.into_tensor_arg()),
        };
        let types = [dtype, int].map(dtype_to_storage_type);
        let cubes = (width + tail).div_ceil(copy_rows::rows_of_cube(vectors));
        kernel::pad::launch(
            &client,
            CubeCount::Static((shape[0] * shape[1]) as u32, cubes as u32, 1),
            CubeDim::new_1d(copy_rows::UNITS as u32),
            vector,
            keys.into_tensor_arg(),
            values.into_tensor_arg(),
            offsets,
            tail_keys.into_tensor_arg(),
            tail_values.into_tensor_arg(),
            all_keys.clone().into_tensor_arg(),
            all_values.clone().into_tensor_arg(),
            width,
            vectors,
            differ,
            types,
        );
        (all_keys, all_values)
    }
}
