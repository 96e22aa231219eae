//! What tests of several kernels share.

use briquette_tests::inputs::round;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

/// Leaves numbers that show in buffers a result may be written to.
pub(crate) fn poison(device: &Device, sizes: &[usize]) {
    for &size in sizes {
        let _ = Tensor::<1>::full([size], f32::NAN, device).add_scalar(1.0).into_data();
    }
}

pub(crate) fn numbers<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.cast(DType::F32).try_into_vec_as::<f32>().unwrap()
}

pub(crate) fn close(found: &[f32], expected: &[f64], dtype: DType, tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(*found) - round(*expected, dtype)).abs();
        assert!(
            off <= tolerance * (1.0 + expected.abs()),
            "{found} at {index}, expected {expected}, {dtype:?}"
        );
    }
}

/// Rows of `head_dim` numbers, one after another.
pub(crate) fn rows(x: &Tensor<4>, head_dim: usize) -> Vec<Vec<f64>> {
    let x = x.clone().cast(DType::F32).try_into_vec_as::<f32>().unwrap();
    x.chunks(head_dim).map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect()
}

pub(crate) fn integers(list: &[usize], device: &Device) -> Tensor<1, Int> {
    let list: Vec<i64> = list.iter().map(|&number| number as i64).collect();
    let length = list.len();
    Tensor::from_data(TensorData::new(list, [length]), device)
}
