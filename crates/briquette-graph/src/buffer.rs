//! Tensors as buffers of the device.

use briquette::state::StateTensor;
use briquette_kernels::buffer::{of_floats, of_ints, put_floats, put_ints};
use burn_cubecl::tensor::CubeTensor;
use cubecl::std::tensor::copy_into;

/// Where the numbers of a tensor lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    memory: usize,
    offset: Option<u64>,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl Place {
    pub(crate) fn of(tensor: &CubeTensor) -> Self {
        Self {
            memory: tensor.handle.memory.descriptor().id.value,
            offset: tensor.handle.offset_start,
            shape: tensor.meta.shape().to_vec(),
            strides: tensor.meta.strides().to_vec(),
        }
    }
}

/// Writes the numbers of one tensor over those of another, wherever else that is held. Both have
/// one shape and one type.
pub(crate) fn overwrite(target: &CubeTensor, source: CubeTensor) {
    let (client, dtype) = (source.client.clone(), source.dtype);
    let element = burn::backend::cubecl::dtype_to_storage_type(dtype);
    copy_into(&client, source.binding(), target.clone().binding(), element);
}

/// The buffer of a tensor of the state.
pub(crate) fn of_state(tensor: &StateTensor<'_>) -> Option<CubeTensor> {
    match tensor {
        StateTensor::Float2(tensor) => of_floats(tensor),
        StateTensor::Float3(tensor) => of_floats(tensor),
        StateTensor::Float4(tensor) => of_floats(tensor),
        StateTensor::Int1(tensor) => of_ints(tensor),
        StateTensor::Int2(tensor) => of_ints(tensor),
        StateTensor::Int3(tensor) => of_ints(tensor),
        _ => None,
    }
}

/// Makes this buffer that of a tensor of the state.
pub(crate) fn put(tensor: StateTensor<'_>, buffer: CubeTensor) {
    match tensor {
        StateTensor::Float2(tensor) => put_floats(tensor, buffer),
        StateTensor::Float3(tensor) => put_floats(tensor, buffer),
        StateTensor::Float4(tensor) => put_floats(tensor, buffer),
        StateTensor::Int1(tensor) => put_ints(tensor, buffer),
        StateTensor::Int2(tensor) => put_ints(tensor, buffer),
        StateTensor::Int3(tensor) => put_ints(tensor, buffer),
        _ => {}
    }
}
