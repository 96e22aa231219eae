use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{CubeBackend, ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::{
    kernel,
    operands::{Before, Held},
};

pub(super) fn launch(
    similarity: CubeTensor,
    before: Before<CubeBackend>,
    held: Held<CubeBackend>,
    beta: f32,
) -> (CubeTensor, CubeTensor) {
    let (client, device) = (similarity.client.clone(), similarity.device.clone());
    let shape = similarity.shape();
    let batch = shape[0];
    let empty = |shape| empty_device_dtype(client.clone(), device.clone(), shape, DType::F32);
    let weights = empty(shape);
    let threshold = empty(Shape::from([batch, 1]));
    let follows = matches!(before, Before::Threshold { .. });
    let differ = matches!(held, Held::Differ { .. });
    let (count, int) = match &held {
        Held::Alike { count } => (*count, DType::I32),
        Held::Differ { counts } => (0, counts.dtype),
    };
    // What is not looked at: another tensor stands in.
    let before = match before {
        Before::Nothing => similarity.as_tensor_alias(0),
        Before::Threshold { of_rows } => of_rows.into_tensor_arg(),
    };
    let counts = match held {
        Held::Alike { .. } => similarity.as_tensor_alias(0),
        Held::Differ { counts } => counts.into_tensor_arg(),
    };
    kernel::ema_weights::launch(
        &client,
        CubeCount::Static(batch as u32, 1, 1),
        CubeDim::new_1d(kernel::UNITS as u32),
        similarity.into_tensor_arg(),
        before,
        counts,
        weights.clone().into_tensor_arg(),
        threshold.clone().into_tensor_arg(),
        count,
        beta,
        follows,
        differ,
        dtype_to_storage_type(int),
    );
    (weights, threshold)
}
