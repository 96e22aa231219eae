use briquette_kernels as kernels;
use burn::tensor::Tensor;

use super::super::RotaryInput;

pub(super) fn rotate(x: Tensor<4>, rotary: RotaryInput) -> kernels::Result<Tensor<4>> {
    let RotaryInput { cosines, sines, positions } = rotary;
    kernels::rotate(x, kernels::RotaryTables { cosines, sines, positions })
}
