//! Shared parts of the tests of kernels.

use std::fmt::Debug;

use briquette::ops::{OpError, Ops};
use briquette_kernels::{Kernels, supports};
use briquette_ops::Result;
use briquette_tests::{
    backends::{Backend, DEVICES, backends, host},
    inputs::{Noise, round},
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData, kind::Numeric};

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

/// Runs in each type of each of these backends.
pub(crate) fn each_dtype(backends: Vec<Backend>, run: impl Fn(&Backend, DType)) {
    for backend in &backends {
        for dtype in backend.dtypes() {
            run(backend, dtype);
        }
    }
}

/// Runs those of the cases that each of these backends has in each type.
pub(crate) fn each_case<T: Clone + Debug>(
    backends: Vec<Backend>,
    cases: &[T],
    run: impl Fn(&Backend, DType, &T),
) {
    each_dtype(backends, |backend, dtype| {
        for case in backend.some(cases.to_vec(), dtype) {
            println!("{}, {dtype:?}, {case:?}", backend.name);
            run(backend, dtype, &case);
        }
    });
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

/// The errors of the operation of this name.
#[derive(Clone, Copy)]
pub(crate) struct RefusedBy(pub(crate) &'static str);

impl RefusedBy {
    /// The device has no kernels.
    pub(crate) fn device(self) -> OpError {
        OpError::Device { operation: self.0 }
    }

    /// A tensor has another shape.
    pub(crate) fn shape(
        self,
        tensor: &'static str,
        found: &[usize],
        expected: &[usize],
    ) -> OpError {
        let (found, expected) = (found.to_vec(), expected.to_vec());
        OpError::Shape { operation: self.0, tensor, found, expected }
    }

    /// A tensor is not of f32, but of half precision.
    pub(crate) fn half(self, tensor: &'static str) -> OpError {
        let (found, expected) = (DType::F16, DType::F32);
        OpError::DataType { operation: self.0, tensor, found, expected }
    }

    pub(crate) fn value(self, what: &'static str, found: usize, expected: &str) -> OpError {
        OpError::Value { operation: self.0, what, found, expected: expected.to_owned() }
    }

    pub(crate) fn size(self, what: &'static str, found: usize, max: usize) -> OpError {
        OpError::TooLarge { operation: self.0, what, found, max }
    }
}

/// Leaves numbers that show in buffers a result may be written to.
pub(crate) fn poison(device: &Device, sizes: &[usize]) {
    poison_as(DType::F32, device, sizes);
}

pub(crate) fn poison_as(dtype: DType, device: &Device, sizes: &[usize]) {
    for &size in sizes {
        let _ = Tensor::<1>::full([size], f32::NAN, (device, dtype)).add_scalar(1.0).into_data();
    }
}

pub(crate) fn numbers<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.cast(DType::F32).try_into_vec_as::<f32>().unwrap()
}

/// The same numbers in f64.
pub(crate) fn f64s<const D: usize>(x: &Tensor<D>) -> Vec<f64> {
    numbers(x.clone()).into_iter().map(f64::from).collect()
}

pub(crate) fn whole_numbers<const D: usize>(x: Tensor<D, Int>) -> Vec<i64> {
    x.try_into_vec_as::<i64>().unwrap()
}

#[track_caller]
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

/// Rows of numbers, one after another.
pub(crate) fn rows(x: &Tensor<4>) -> Vec<Vec<f64>> {
    f64s(x).chunks(x.dims()[3]).map(<[f64]>::to_vec).collect()
}

/// Whole numbers on a device.
pub(crate) fn integers<const D: usize, T: Copy + TryInto<i64, Error: Debug>>(
    list: &[T],
    dims: [usize; D],
    device: &Device,
) -> Tensor<D, Int> {
    let list: Vec<i64> =
        list.iter().map(|&number| TryInto::<i64>::try_into(number).unwrap()).collect();
    Tensor::from_data(TensorData::new(list, dims), device)
}

/// Numbers of f32 on a device.
pub(crate) fn floats<const D: usize>(list: &[f32], dims: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(list.to_vec(), dims), (device, DType::F32))
}

/// Where each list begins among all, one after another, and where the last ends.
pub(crate) fn offsets(lengths: &[usize]) -> Vec<usize> {
    (0..=lengths.len()).map(|list| lengths[..list].iter().sum::<usize>()).collect()
}

/// Adds numbers to a list, behind so many others.
pub(crate) fn extend_behind<T: Copy>(
    list: &mut Vec<T>,
    padding: usize,
    other: T,
    numbers: impl IntoIterator<Item = T>,
) {
    list.extend(std::iter::repeat_n(other, padding));
    list.extend(numbers);
}

/// Draws a matrix of normal noise. It is rounded on the host: a device that fuses operations may
/// leave a rounding out where the numbers are read back as f32.
pub(crate) fn noise_matrix(
    noise: &mut Noise,
    [rows, columns]: [usize; 2],
    dtype: DType,
    device: &Device,
) -> Tensor<2> {
    let numbers = noise.tensor([1, 1, rows, columns], &host()).reshape([rows, columns]);
    numbers.cast(dtype).to_device(device)
}

/// The same numbers, with these dimensions swapped in memory.
pub(crate) fn turned<const D: usize, K: Numeric>(
    x: &Tensor<D, K>,
    one: usize,
    other: usize,
) -> Tensor<D, K> {
    x.clone().swap_dims(one, other).add_scalar(0).swap_dims(one, other)
}

/// The same numbers, between others.
pub(crate) fn within(x: &Tensor<2>) -> Tensor<2> {
    let around = || x.clone().mul_scalar(f32::NAN);
    Tensor::cat(vec![around(), x.clone(), around()], 1).narrow(1, x.dims()[1], x.dims()[1])
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
