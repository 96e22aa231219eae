//! Shared parts of the tests of kernels.

use std::fmt::Debug;

use briquette::ops::{OpError, Ops, Result};
use briquette_kernels::{Kernels, supports};
use briquette_tests::{
    backends::{Backend, DEVICES, backends},
    inputs::{Noise, round},
    session::tolerance,
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

/// Whether some device of this build has kernels.
const HAS_KERNELS: bool = cfg!(any(
    feature = "wgpu",
    feature = "vulkan",
    feature = "metal",
    feature = "cuda",
    feature = "rocm",
    feature = "cpu",
));

/// Every backend of this build: kernels are to answer on one at least, tensor operations on the
/// others.
pub(crate) fn all_backends() -> Vec<Backend> {
    let backends = backends();
    let names: Vec<&str> = backends.iter().map(|backend| &*backend.name).collect();
    assert!(
        !HAS_KERNELS || backends.iter().any(|backend| supports(&backend.device)),
        "no kernel would be tested: of the devices {names:?} none has kernels, but this build does. Name one in \
         {DEVICES}, or leave these tests out: -E 'not binary(kernels)'"
    );
    backends
}

/// Those of them that have kernels.
pub(crate) fn kernel_backends() -> Vec<Backend> {
    all_backends().into_iter().filter(|backend| supports(&backend.device)).collect()
}

/// Whether a kernel is refused because it has more tensors than the device binds, on a device that
/// is known for it.
pub(crate) fn binds_too_few(backend: &Backend, reason: &OpError) -> bool {
    backend.binds_few() && matches!(reason, OpError::TooLarge { what: "the number of tensors", .. })
}

/// Calls an operation: a kernel answers where the device has them and binds all of its tensors.
/// Elsewhere tensor operations answer, and this operation, and any other that they called, has been
/// counted as one that the device lacks.
pub(crate) fn answer<T>(
    backend: &Backend,
    operation: &str,
    call: impl FnOnce(&Kernels) -> Result<T>,
) -> T {
    let kernels = Kernels::default();
    let name = &backend.name;
    let found = call(&kernels).unwrap_or_else(|error| panic!("{name}: {error}"));
    let fallbacks = kernels.fallbacks();
    if supports(&backend.device) {
        let lacks = fallbacks.iter().all(|fallback| binds_too_few(backend, &fallback.reason));
        assert!(lacks, "tensor operations answered on {name}: {fallbacks:?}");
        return found;
    }
    let counted = fallbacks.iter().any(|fallback| fallback.operation == operation);
    assert!(counted, "{name} has no kernels, but {operation} is not among {fallbacks:?}");
    for fallback in fallbacks {
        assert_eq!(fallback.reason, OpError::Device { operation: fallback.operation });
    }
    found
}

/// The refusal of a tensor of another shape.
pub(crate) fn wrong_shape(
    operation: &'static str,
    tensor: &'static str,
    found: &[usize],
    expected: &[usize],
) -> OpError {
    OpError::Shape { operation, tensor, found: found.to_vec(), expected: expected.to_vec() }
}

/// The refusal of a number.
pub(crate) fn wrong_value(
    operation: &'static str,
    what: &'static str,
    found: usize,
    expected: &str,
) -> OpError {
    OpError::Value { operation, what, found, expected: expected.to_owned() }
}

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

/// Compares rows with what they are to be, to the rounding of their type.
pub(crate) fn close_rows(
    found: &[Vec<f64>],
    expected: &[Vec<f64>],
    dtype: DType,
    case: &dyn Debug,
) {
    for (row, (found, expected)) in found.iter().zip(expected).enumerate() {
        for (found, expected) in found.iter().zip(expected) {
            let off = (found - round(*expected, dtype)).abs();
            let most = tolerance(dtype) * (1.0 + expected.abs());
            assert!(off <= most, "{found}, expected {expected}, row {row}, {dtype:?}, {case:?}");
        }
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

/// Draws a matrix of normal noise.
pub(crate) fn noise_matrix(
    noise: &mut Noise,
    [rows, columns]: [usize; 2],
    dtype: DType,
    device: &Device,
) -> Tensor<2> {
    noise.tensor([1, 1, rows, columns], device).reshape([rows, columns]).cast(dtype)
}

/// The same numbers, columns after columns.
pub(crate) fn turned(x: &Tensor<2>) -> Tensor<2> {
    x.clone().swap_dims(0, 1).add_scalar(0.0).swap_dims(0, 1)
}

/// The same numbers, between others.
pub(crate) fn within(x: &Tensor<2>) -> Tensor<2> {
    let around = || x.clone().mul_scalar(f32::NAN);
    Tensor::cat(vec![around(), x.clone(), around()], 1).narrow(1, x.dims()[1], x.dims()[1])
}

/// The same numbers in f64.
pub(crate) fn f64s(numbers: Vec<f32>) -> Vec<f64> {
    numbers.into_iter().map(f64::from).collect()
}

/// Holds products to what they are, and how large their terms are together. Sums are f32 and
/// rounded once: to the next number, or the one beyond where the sum is off by its own rounding,
/// and by `more` of its terms.
pub(crate) fn assert_products(
    found: &[f32],
    expected: &[(f64, f64)],
    more: f64,
    dtype: DType,
    what: &str,
) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, (sum, size))) in found.iter().zip(expected).enumerate() {
        let slack = (2e-6 + more) * size;
        let low = round(sum - slack, dtype) - slack;
        let high = round(sum + slack, dtype) + slack;
        let own = f64::from(*found);
        assert!(
            (low..=high).contains(&own),
            "{own} at {index}, expected {low} to {high}, {what}, {dtype:?}"
        );
    }
}
