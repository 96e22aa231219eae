//! One number and many, sizes that no tile divides, ranges that end inside a tile, every
//! arrangement of planes.

use briquette::ops::Reference;
use briquette_kernels::{Kernels, MOST_LINEAR_ROWS, linear};
#[cfg(cubecl_0_12)]
use briquette_kernels::{LINEAR_SETTINGS, linear_by};
use briquette_ops::{LinearInput, ModelOps};
use briquette_tests::backends::host;
use burn::tensor::{DType, Device, Tensor};

use super::{Case, accelerators, case, sums};
use crate::common::{
    RefusedBy, assert_products, each_case, each_dtype, numbers, poison, turned, within,
};

const CASES: [Case; 17] = [
    case(1, 1, 1, false),
    case(8, 16, 8, true),
    case(3, 7, 5, true),
    case(16, 1040, 200, false),
    case(1, 4096, 72, true),
    case(20, 96, 18000, true),
    case(16, 64, 5000, false),
    case(9, 48, 1000, false),
    case(17, 272, 516, true),
    case(40, 160, 136, true),
    case(64, 96, 520, false),
    case(65, 336, 64, true),
    case(150, 64, 264, false),
    case(MOST_LINEAR_ROWS, 32, 200, true),
    case(33, 320, 136, true),
    case(130, 192, 136, true),
    case(129, 2048, 128, false),
];

/// A call, and for each number of the result what it is and how large its terms are together.
struct Drawn {
    call: LinearInput,
    expected: Vec<(f64, f64)>,
}

fn drawn(case: Case, dtype: DType, device: &Device) -> Drawn {
    let (x, weight, bias) = case.operands(case.rows * 31 + case.inputs, dtype, device);
    Drawn { expected: sums(&x, &weight, bias.as_ref()), call: LinearInput { x, weight, bias } }
}

impl Drawn {
    fn check(&self, call: LinearInput, dtype: DType, what: &str) -> Vec<f32> {
        self.check_by(|call| linear(call).unwrap(), call, dtype, what)
    }

    fn check_by(
        &self,
        product: impl Fn(LinearInput) -> Tensor<2>,
        call: LinearInput,
        dtype: DType,
        what: &str,
    ) -> Vec<f32> {
        poison(&call.x.device(), &[self.expected.len(), self.expected.len() * 4]);
        let dims = [call.x.dims()[0], call.weight.dims()[1]];
        let found = product(call);
        assert_eq!(found.dims(), dims, "{what}");
        assert_eq!(found.dtype(), dtype, "{what}");
        let found = numbers(found);
        assert_products(&found, &self.expected, 0.0, dtype, what);
        found
    }
}

/// Of a prompt, and of more rows than cubes go through together.
#[test]
fn linear_of_many_rows() {
    let many = [case(300, 64, 136, true), case(2200, 96, 264, false)];
    each_dtype(accelerators(), |backend, dtype| {
        for case in many {
            println!("{}, {dtype:?}, {case:?}", backend.name);
            let drawn = drawn(case, dtype, &backend.device);
            match linear(drawn.call.clone()) {
                // Units multiply fewer.
                Err(error) => {
                    let expected = RefusedBy("linear").size("rows", case.rows, MOST_LINEAR_ROWS);
                    assert_eq!(error, expected);
                    assert!(dtype == DType::F32 || backend.name != "cuda", "{case:?}");
                }
                Ok(_) => {
                    let LinearInput { x, weight, bias } = drawn.call.clone();
                    drawn.check(drawn.call.clone(), dtype, "as it is");
                    let weight = turned(&weight, 0, 1);
                    drawn.check(LinearInput { x, weight, bias }, dtype, "weight turned");
                }
            }
        }
    });
}

#[test]
fn linear_of_cases() {
    each_case(accelerators(), &CASES, |backend, dtype, &case| {
        let drawn = drawn(case, dtype, &backend.device);
        let LinearInput { x, weight, bias } = drawn.call.clone();
        let found = drawn.check(drawn.call.clone(), dtype, "as it is");
        let again = drawn.check(drawn.call.clone(), dtype, "again");
        assert_eq!(found, again, "two runs give the same bits");
        let call = |x, weight| LinearInput { x, weight, bias: bias.clone() };
        let x_turned = call(turned(&x, 0, 1), weight.clone());
        assert_eq!(found, drawn.check(x_turned, dtype, "x turned"));
        let x_within = call(within(&x), weight.clone());
        assert_eq!(found, drawn.check(x_within, dtype, "x within"));
        drawn.check(call(x.clone(), turned(&weight, 0, 1)), dtype, "weight turned");
        let k_major = within(&weight.clone().transpose()).transpose();
        drawn.check(call(x.clone(), k_major), dtype, "weight turned and within");
        drawn.check(call(x, within(&weight)), dtype, "weight within");
    });
}

/// Sizes that no tile divides, and more tiles than cubes.
#[cfg(cubecl_0_12)]
#[test]
fn linear_by_each_setting() {
    let by = RefusedBy("linear");
    let cases = [case(33, 96, 136, false), case(150, 1056, 520, false), case(300, 32, 5000, false)];
    each_dtype(accelerators(), |backend, dtype| {
        for of in cases {
            println!("{}, {dtype:?}, {of:?}", backend.name);
            let call = drawn(case(1, 32, 8, false), dtype, &backend.device).call;
            if let Err(error) = linear_by(call, 0) {
                assert_eq!(error, by.device());
                assert!(dtype == DType::F32 || backend.name != "cuda");
                continue;
            }
            let drawn = drawn(of, dtype, &backend.device);
            for (setting, what) in LINEAR_SETTINGS.into_iter().enumerate() {
                let product = |call| linear_by(call, setting).unwrap();
                let call = drawn.call.clone();
                drawn.check_by(product, call, dtype, &format!("{what:?}"));
            }
            let settings = LINEAR_SETTINGS.len();
            let error = linear_by(drawn.call.clone(), settings).unwrap_err();
            assert_eq!(error, by.size("setting", settings, settings - 1));
        }
    });
}

fn zeros(device: &Device) -> LinearInput {
    LinearInput {
        x: Tensor::zeros([3, 5], (device, DType::F32)),
        weight: Tensor::zeros([5, 7], (device, DType::F32)),
        bias: None,
    }
}

/// The order of sums tells whose product it is.
#[test]
fn few_rows_are_multiplied_by_the_kernel() {
    for backend in accelerators() {
        for dtype in backend.dtypes() {
            let call = drawn(case(1, 4096, 4096, false), dtype, &backend.device).call;
            let [own, burn] = [linear(call.clone()), Reference.linear(call.clone())]
                .map(|product| numbers(product.unwrap()));
            // Of so many sums some are rounded otherwise, in 16 bits too.
            assert!(own != burn, "{}, {dtype:?}", backend.name);
            let found = numbers(Kernels::default().linear(call).unwrap());
            assert!(found == own, "{}, {dtype:?}", backend.name);
        }
    }
}

#[test]
fn linear_refuses_the_host() {
    assert_eq!(linear(zeros(&host())).unwrap_err(), RefusedBy("linear").device());
}

#[test]
fn linear_refuses() {
    let by = RefusedBy("linear");
    for backend in accelerators() {
        let whole = || zeros(&backend.device);
        let zeros = |rows, columns| Tensor::zeros([rows, columns], (&backend.device, DType::F32));
        let refused = |input| linear(input).unwrap_err();
        let of_weight = |weight| refused(LinearInput { weight, ..whole() });
        assert_eq!(of_weight(zeros(4, 7)), by.shape("weight", &[4, 7], &[5, 7]));
        let bias = Some(Tensor::zeros([5], (&backend.device, DType::F32)));
        let error = refused(LinearInput { bias, ..whole() });
        assert_eq!(error, by.shape("bias", &[5], &[7]));
        let of_rows = |rows| refused(LinearInput { x: zeros(rows, 5), ..whole() });
        let expected = by.size("rows", MOST_LINEAR_ROWS + 1, MOST_LINEAR_ROWS);
        assert_eq!(of_rows(MOST_LINEAR_ROWS + 1), expected);
        assert_eq!(of_rows(0), by.value("rows", 0, "1 or more"));
        assert_eq!(of_weight(zeros(5, 0)), by.value("outputs", 0, "1 or more"));
        if backend.device.supports_dtype(DType::F16) {
            assert_eq!(of_weight(zeros(5, 7).cast(DType::F16)), by.half("weight"));
        }
    }
}
