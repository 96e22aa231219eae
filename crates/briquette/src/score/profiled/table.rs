//! Tables of a profile as tensors.

use burn::tensor::{DType, Device, Tensor, TensorData};

/// Rows of a layer in a table `[layers][heads][width]`, as `[1, heads, 1, width]`, f32.
pub(crate) fn table(layers: &[Vec<Vec<f64>>], layer: usize, device: &Device) -> Tensor<4> {
    let heads = layers.get(layer).map(Vec::as_slice).unwrap_or_default();
    let dims = [1, heads.len(), 1, heads.first().map_or(0, Vec::len)];
    let numbers: Vec<f32> = heads.iter().flatten().map(|number| *number as f32).collect();
    Tensor::from_data(TensorData::new(numbers, dims), (device, DType::F32))
}
