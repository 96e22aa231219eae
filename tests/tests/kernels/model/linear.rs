//! One number and many, sizes that no tile divides, ranges that end inside a tile, every
//! arrangement of planes.

use briquette::ops::{LinearInput, ModelOps, OpError, Reference};
use briquette_kernels::{Kernels, MOST_LINEAR_ROWS, linear};
#[cfg(cubecl_0_12)]
use briquette_kernels::{LINEAR_SETTINGS, linear_by};
use briquette_tests::{
    backends::{backends, host},
    inputs::Noise,
};
use burn::{
    backend::DispatchDevice,
    tensor::{DType, Device, Tensor},
};

use crate::common::{assert_products, f64s, noise_matrix, numbers, poison, turned, within};

#[derive(Clone, Copy, Debug)]
struct Case {
    rows: usize,
    inputs: usize,
    outputs: usize,
    bias: bool,
}

fn cases() -> Vec<Case> {
    let case = |rows, inputs, outputs, bias| Case { rows, inputs, outputs, bias };
    vec![
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
    ]
}

/// A call, and for each number of the result what it is and how large its terms are together.
struct Drawn {
    call: LinearInput,
    expected: Vec<(f64, f64)>,
}

impl Case {
    fn draw(self, dtype: DType, device: &Device) -> Drawn {
        let Self { rows, inputs, outputs, bias } = self;
        let mut noise = Noise::new((rows * 31 + inputs) as u64);
        let mut tensor = |rows, columns| noise_matrix(&mut noise, [rows, columns], dtype, device);
        let (x, weight) = (tensor(rows, inputs), tensor(inputs, outputs));
        let bias = bias.then(|| tensor(1, outputs).reshape([outputs]));
        let (of_x, of_weight) = (f64s(numbers(x.clone())), f64s(numbers(weight.clone())));
        let of_bias = bias.clone().map_or(vec![0.0; outputs], |bias| f64s(numbers(bias)));
        let expected = (0..rows * outputs).map(|place| {
            let (row, output) = (place / outputs, place % outputs);
            let terms = (0..inputs)
                .map(|input| of_x[row * inputs + input] * of_weight[input * outputs + output]);
            let terms = terms.chain([of_bias[output]]);
            terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
        });
        Drawn { expected: expected.collect(), call: LinearInput { x, weight, bias } }
    }
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
    let many = [
        Case { rows: 300, inputs: 64, outputs: 136, bias: true },
        Case { rows: 2200, inputs: 96, outputs: 264, bias: false },
    ];
    for backend in backends().into_iter().filter(|backend| backend.name != "flex") {
        for dtype in backend.dtypes() {
            for case in many {
                println!("{}, {dtype:?}, {case:?}", backend.name);
                let drawn = case.draw(dtype, &backend.device);
                match linear(drawn.call.clone()) {
                    // Units multiply fewer.
                    Err(error) => {
                        let (found, max) = (case.rows, MOST_LINEAR_ROWS);
                        let what = "rows";
                        let operation = "linear";
                        assert_eq!(error, OpError::TooLarge { operation, what, found, max });
                        assert!(dtype == DType::F32 || backend.name != "cuda", "{case:?}");
                    }
                    Ok(_) => {
                        let LinearInput { x, weight, bias } = drawn.call.clone();
                        drawn.check(drawn.call.clone(), dtype, "as it is");
                        let weight = turned(&weight);
                        drawn.check(LinearInput { x, weight, bias }, dtype, "weight turned");
                    }
                }
            }
        }
    }
}

#[test]
fn linear_of_cases() {
    for backend in backends().into_iter().filter(|backend| backend.name != "flex") {
        for dtype in backend.dtypes() {
            for case in backend.some(cases(), dtype) {
                println!("{}, {dtype:?}, {case:?}", backend.name);
                let drawn = case.draw(dtype, &backend.device);
                let LinearInput { x, weight, bias } = drawn.call.clone();
                let found = drawn.check(drawn.call.clone(), dtype, "as it is");
                let again = drawn.check(drawn.call.clone(), dtype, "again");
                assert_eq!(found, again, "two runs give the same bits");
                let call = |x, weight| LinearInput { x, weight, bias: bias.clone() };
                let x_turned = call(turned(&x), weight.clone());
                assert_eq!(found, drawn.check(x_turned, dtype, "x turned"));
                let x_within = call(within(&x), weight.clone());
                assert_eq!(found, drawn.check(x_within, dtype, "x within"));
                drawn.check(call(x.clone(), turned(&weight)), dtype, "weight turned");
                let k_major = within(&weight.clone().transpose()).transpose();
                drawn.check(call(x.clone(), k_major), dtype, "weight turned and within");
                drawn.check(call(x, within(&weight)), dtype, "weight within");
            }
        }
    }
}

/// Sizes that no tile divides, and more tiles than cubes.
#[cfg(cubecl_0_12)]
#[test]
fn linear_by_each_setting() {
    let cases = [
        Case { rows: 33, inputs: 96, outputs: 136, bias: false },
        Case { rows: 150, inputs: 1056, outputs: 520, bias: false },
        Case { rows: 300, inputs: 32, outputs: 5000, bias: false },
    ];
    for backend in backends().into_iter().filter(|backend| backend.name != "flex") {
        for dtype in backend.dtypes() {
            for case in cases {
                println!("{}, {dtype:?}, {case:?}", backend.name);
                let few = Case { rows: 1, inputs: 32, outputs: 8, bias: false };
                let call = few.draw(dtype, &backend.device).call;
                if let Err(error) = linear_by(call, 0) {
                    assert_eq!(error, OpError::Device { operation: "linear" });
                    assert!(dtype == DType::F32 || backend.name != "cuda");
                    continue;
                }
                let drawn = case.draw(dtype, &backend.device);
                for (setting, what) in LINEAR_SETTINGS.into_iter().enumerate() {
                    let product = |call| linear_by(call, setting).unwrap();
                    let call = drawn.call.clone();
                    drawn.check_by(product, call, dtype, &format!("{what:?}"));
                }
                let (found, max) = (LINEAR_SETTINGS.len(), LINEAR_SETTINGS.len() - 1);
                let error = linear_by(drawn.call.clone(), found).unwrap_err();
                let (operation, what) = ("linear", "setting");
                assert_eq!(error, OpError::TooLarge { operation, what, found, max });
            }
        }
    }
}

fn zeros(device: &Device) -> LinearInput {
    LinearInput {
        x: Tensor::zeros([3, 5], (device, DType::F32)),
        weight: Tensor::zeros([5, 7], (device, DType::F32)),
        bias: None,
    }
}

/// The kernel shares weights among multiprocessors, and a device may not say how many it has: there
/// Burn multiplies in 16 bits and with `autotune`. The order of sums tells whose product it is.
#[test]
fn whoever_is_faster_multiplies_on_a_device_of_unknown_size() {
    for backend in backends() {
        let DispatchDevice::Cube(device) = backend.device.as_dispatch() else { continue };
        let is_known =
            device.client().properties().hardware.num_streaming_multiprocessors.is_some();
        for dtype in backend.dtypes() {
            let is_ours = is_known || dtype == DType::F32 && !cfg!(feature = "autotune");
            let case = Case { rows: 1, inputs: 4096, outputs: 4096, bias: false };
            let call = case.draw(dtype, &backend.device).call;
            let [own, burn] = [linear(call.clone()), Reference.linear(call.clone())]
                .map(|product| numbers(product.unwrap()));
            // Of so many sums some are rounded otherwise, in 16 bits too.
            assert!(own != burn, "{}, {dtype:?}", backend.name);
            let found = numbers(Kernels::default().linear(call).unwrap());
            let expected = if is_ours { own } else { burn };
            assert!(found == expected, "{}, {dtype:?}", backend.name);
        }
    }
}

#[test]
fn linear_refuses_the_host() {
    let error = linear(zeros(&host())).unwrap_err();
    assert_eq!(error, OpError::Device { operation: "linear" });
}

#[test]
fn linear_refuses() {
    let operation = "linear";
    for backend in backends().into_iter().filter(|backend| backend.name != "flex") {
        let whole = || zeros(&backend.device);
        let zeros = |rows, columns| Tensor::zeros([rows, columns], (&backend.device, DType::F32));
        let error = linear(LinearInput { weight: zeros(4, 7), ..whole() }).unwrap_err();
        let (found, expected) = (vec![4, 7], vec![5, 7]);
        assert_eq!(error, OpError::Shape { operation, tensor: "weight", found, expected });
        let bias = Tensor::zeros([5], (&backend.device, DType::F32));
        let error = linear(LinearInput { bias: Some(bias), ..whole() }).unwrap_err();
        let (found, expected) = (vec![5], vec![7]);
        assert_eq!(error, OpError::Shape { operation, tensor: "bias", found, expected });
        let error =
            linear(LinearInput { x: zeros(MOST_LINEAR_ROWS + 1, 5), ..whole() }).unwrap_err();
        let (found, max) = (MOST_LINEAR_ROWS + 1, MOST_LINEAR_ROWS);
        assert_eq!(error, OpError::TooLarge { operation, what: "rows", found, max });
        let error = linear(LinearInput { x: zeros(0, 5), ..whole() }).unwrap_err();
        let expected = "1 or more".to_owned();
        assert_eq!(error, OpError::Value { operation, what: "rows", found: 0, expected });
        let error = linear(LinearInput { weight: zeros(5, 0), ..whole() }).unwrap_err();
        let expected = "1 or more".to_owned();
        assert_eq!(error, OpError::Value { operation, what: "outputs", found: 0, expected });
        if backend.device.supports_dtype(DType::F16) {
            let half = whole().weight.cast(DType::F16);
            let error = linear(LinearInput { weight: half, ..whole() }).unwrap_err();
            let (found, expected) = (DType::F16, DType::F32);
            let tensor = "weight";
            assert_eq!(error, OpError::DataType { operation, tensor, found, expected });
        }
    }
}
