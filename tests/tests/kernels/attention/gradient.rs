//! The gradient that goes back through causal attention on a device, beside the one that Burn finds
//! through the textbook's operations on the host.

use briquette::ops::{AttentionInput, OpError, Visibility};
use briquette_kernels::attention;
use briquette_tests::{backends::host, inputs::Noise};
use burn::tensor::{DType, Device, Tensor, activation::softmax};

use crate::common::kernel_backends;

const SCALE: f64 = 0.3;

#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Keys before the first query's own.
    old: usize,
    new: usize,
}

fn cases() -> Vec<Case> {
    let one = Case { batch: 2, heads: 4, kv_heads: 2, head_dim: 16, old: 0, new: 300 };
    // Keys before the first query; queries in two blocks; one query; another head dimension.
    vec![
        Case { old: 33, new: 37, ..one },
        one,
        Case { old: 5, new: 1, ..one },
        Case { head_dim: 32, heads: 2, new: 65, ..one },
    ]
}

fn input([queries, keys, values]: [Tensor<4>; 3], visibility: Visibility) -> AttentionInput {
    AttentionInput {
        queries,
        keys,
        values,
        visibility,
        scale: SCALE,
        column_sums: false,
        column_squares: false,
    }
}

/// Of queries, keys and values.
fn gradients(
    inputs: &[Tensor<4>; 3],
    slope: &Tensor<4>,
    attend: impl Fn([Tensor<4>; 3]) -> Tensor<4>,
) -> [Tensor<4>; 3] {
    let leaves = inputs.clone().map(|x| x.autodiff().require_grad());
    let output = attend(leaves.clone());
    let found = (output * slope.clone().autodiff()).sum().backward();
    leaves.map(|x| x.grad(&found).unwrap())
}

impl Case {
    fn textbook(&self, [queries, keys, values]: [Tensor<4>; 3]) -> Tensor<4> {
        let Self { batch, heads, kv_heads, head_dim, old, new } = *self;
        let entries = old + new;
        let each = |x: Tensor<4>| {
            let shape = [batch, kv_heads, heads / kv_heads, entries, head_dim];
            x.unsqueeze_dim::<5>(2).expand(shape).reshape([batch, heads, entries, head_dim])
        };
        let scores = queries.matmul(each(keys).swap_dims(2, 3)) * SCALE;
        let hidden = Tensor::<2>::ones([new, entries], &host()).triu(old as i64 + 1).bool();
        let hidden = hidden.unsqueeze::<4>().expand([batch, heads, new, entries]);
        softmax(scores.mask_fill(hidden, -1e30), 3).matmul(each(values))
    }

    fn check(&self, dtype: DType, device: &Device) {
        let Self { batch, heads, kv_heads, head_dim, old, new } = *self;
        let mut noise = Noise::new((head_dim + old + new) as u64);
        // Numbers that the type can hold, for both.
        let mut random = |heads, count| {
            noise.tensor([batch, heads, count, head_dim], &host()).cast(dtype).cast(DType::F32)
        };
        let inputs = [random(heads, new), random(kv_heads, old + new), random(kv_heads, old + new)];
        let slope = random(heads, new);
        let expected = gradients(&inputs, &slope, |inputs| self.textbook(inputs));

        let there = |x: &Tensor<4>| x.clone().to_device(device).cast(dtype);
        let found = gradients(&inputs.each_ref().map(there), &there(&slope), |inputs| {
            attention(&input(inputs, Visibility::Causal)).unwrap().output
        });
        // Of the largest number; 16-bit types round every weight and its slope before the products.
        // The products are Burn's, as those of a model's layers are: where tensor cores round f32
        // to the 11 bits of TF32, f16's.
        let tolerance = match dtype {
            DType::F32 if !rounds_f32(device) => 1e-5,
            DType::F32 | DType::F16 => 4e-3,
            _ => 3e-2,
        };
        for ((name, found), expected) in
            ["queries", "keys", "values"].iter().zip(found).zip(expected)
        {
            assert_eq!((found.dims(), found.dtype()), (expected.dims(), dtype), "{name}, {self:?}");
            let found = found.cast(DType::F32).try_into_vec_as::<f32>().unwrap();
            let expected = expected.try_into_vec_as::<f32>().unwrap();
            let most = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            assert!(most > 0.1, "{name}: gradients of at most {most}, {self:?}");
            let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let apart = apart.fold(0.0, f32::max);
            println!("{name}: {apart} apart, the most {most}");
            assert!(apart <= tolerance * most, "{name}: {apart} of {most}, {dtype:?}, {self:?}");
        }
    }
}

/// Whether products of f32 matrices lose the last of 14 bits, in sizes that may be given to
/// different kernels.
fn rounds_f32(device: &Device) -> bool {
    [16, 64, 256].into_iter().any(|size| {
        let number = 1.0 + 1.0 / 8192.0;
        let full = |number: f32| Tensor::<2>::full([size, size], number, (device, DType::F32));
        let sums = full(number).matmul(full(1.0)).try_into_vec_as::<f32>().unwrap();
        sums.iter().any(|&sum| sum != size as f32 * number)
    })
}

#[test]
fn the_gradient_is_that_of_the_textbook_on_every_device() {
    for backend in kernel_backends() {
        for dtype in backend.dtypes() {
            // Those of the 16-bit types for all: a software device compiles each of the products
            // for seconds, and how blocks are put together is tested on the host, in `gradient.rs`.
            for case in backend.some(cases(), DType::F16) {
                println!("{}, {dtype:?}, {case:?}", backend.name);
                case.check(dtype, &backend.device);
            }
        }
    }
}

#[test]
fn what_has_no_gradient_is_refused() {
    for backend in kernel_backends() {
        let device = &backend.device;
        let x = Tensor::<4>::ones([1, 1, 2, 8], device).autodiff().require_grad();
        let positions = || {
            let list = burn::tensor::TensorData::from([[[0_i32, 1]]]);
            Tensor::from_data(list, (device, DType::I32))
        };
        let visibility = Visibility::Positions { queries: positions(), entries: positions() };
        let error = attention(&input([x.clone(), x.clone(), x], visibility)).unwrap_err();
        assert_eq!(error, OpError::Device { operation: "attention" });
    }
}
