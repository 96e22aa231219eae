use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubek::{
    matmul::kernels::{
        CubeStagedMatmulRoutine, MatmulRoutine, MatmulTensors,
        tensor::{PlainTensor, StoredTensor},
    },
    microkernel::matmul::cube::CubeStagedMicrokernel,
    std::{Hardware, routine::Routine},
};

use super::{
    groups,
    setting::{Setting, StagedSetting},
};

/// Writes the product of `x` and the transpose of `weight` to `output`, all `[rows, columns]` with
/// rows of whole chunks of 16 bytes. `false` where the setting is CubeK's, which refuses these
/// sizes or the bias.
pub(in super::super) fn launch(
    x: CubeTensor,
    weight: CubeTensor,
    bias: Option<CubeTensor>,
    output: &CubeTensor,
    setting: Setting,
) -> bool {
    match setting {
        Setting::Groups(blueprint) => {
            groups::launch(x, weight, bias, output, blueprint);
            true
        }
        Setting::Staged(setting) => bias.is_none() && staged(x, weight, output.clone(), setting),
    }
}

fn staged(x: CubeTensor, weight: CubeTensor, output: CubeTensor, setting: StagedSetting) -> bool {
    let client = x.client.clone();
    let plain = |tensor: CubeTensor| {
        let element = dtype_to_storage_type(tensor.dtype);
        PlainTensor::new(tensor.binding(), element)
    };
    let tensors = MatmulTensors::writing_into::<CubeStagedMicrokernel>(
        &client,
        StoredTensor::Plain(plain(x)),
        StoredTensor::Plain(plain(weight).transposed()),
        plain(output),
    );
    let Ok(tensors) = tensors else { return false };
    let routine = CubeStagedMatmulRoutine;
    let hardware = Hardware::from_client(&client);
    match routine.prepare(&hardware, &tensors.problem(), &setting.in_cubek()) {
        Ok((blueprint, grid)) => {
            routine.dispatch_into_buffer(&tensors, blueprint, grid);
            true
        }
        Err(_) => false,
    }
}
