//! Products with quantized weights as they lie: every format, one row and many, sizes that no cube
//! divides, scales that are subnormal. The host is one of the devices.

use briquette::ops::{Ops, best};
use briquette_kernels::{MOST_QUANTIZED_LINEAR_ROWS, dequantize, quantized_linear};
use briquette_ops::{QuantizedLinearInput, QuantizedMatrix, QuantizedParts, WeightFormat};
use briquette_tests::{
    backends::{backends, host},
    inputs::Noise,
};
use burn::tensor::{DType, Device, Int, Tensor, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Case, case};
use crate::common::{RefusedBy, assert_products, each_case, f64s, noise_matrix, numbers, poison};

const FORMATS: [WeightFormat; 9] = [
    WeightFormat::Q8_0,
    WeightFormat::Q4_0,
    WeightFormat::Q4_1,
    WeightFormat::Q4K,
    WeightFormat::Q5_1,
    WeightFormat::Q5K,
    WeightFormat::Q6K,
    WeightFormat::Q8Group128,
    WeightFormat::Q4Group128,
];

/// A matrix, and each weight by the definition of its format: what is multiplied with its level,
/// the level, and what is added.
struct Drawn {
    format: WeightFormat,
    dims: [usize; 2],
    parts: QuantizedParts,
    weights: Vec<(f64, f64, f64)>,
}

/// Scales up to 1/8, of both signs, some of them subnormal.
fn measure(rng: &mut ChaCha8Rng) -> f16 {
    let number = rng.random_range(-0.125..0.125_f32);
    f16::from_f32(if rng.random_bool(0.1) { number * 1e-4 } else { number })
}

impl Drawn {
    fn new(format: WeightFormat, dims: [usize; 2]) -> Self {
        let [outputs, inputs] = dims;
        let mut rng = ChaCha8Rng::seed_from_u64((outputs * 31 + inputs) as u64);
        let group = match format {
            WeightFormat::Q4K | WeightFormat::Q5K | WeightFormat::Q6K => 256,
            WeightFormat::Q8Group128 | WeightFormat::Q4Group128 => 128,
            _ => 32,
        };
        let mut parts = QuantizedParts::default();
        let mut weights = Vec::new();
        for _ in 0..outputs * (inputs / group) {
            let scale = measure(&mut rng);
            let min = matches!(
                format,
                WeightFormat::Q4_1 | WeightFormat::Q4K | WeightFormat::Q5_1 | WeightFormat::Q5K
            );
            let min = min.then(|| measure(&mut rng));
            parts.scales.push(scale);
            parts.mins.extend(min);
            let signed = format == WeightFormat::Q6K;
            let factors: [u8; 16] =
                std::array::from_fn(
                    |_| if signed { rng.random() } else { rng.random_range(0..64) },
                );
            if group == 256 {
                parts.factors.extend(words(&factors));
            }
            let (scale, min) = (scale.to_f64(), min.map_or(0.0, f16::to_f64));
            for block in 0..group / 32 {
                let (levels, bytes) = block_of(format, &mut rng);
                parts.words.extend(words(&bytes));
                let measures = |place: usize| match format {
                    WeightFormat::Q4K | WeightFormat::Q5K => {
                        let [of_scale, of_min] = [block, block + 8].map(|at| factors[at]);
                        (scale * f64::from(of_scale), -min * f64::from(of_min))
                    }
                    WeightFormat::Q6K => {
                        let factor = factors[2 * block + place / 16].cast_signed();
                        (scale * f64::from(factor), min)
                    }
                    _ => (scale, min),
                };
                weights.extend(levels.iter().enumerate().map(|(place, level)| {
                    let (scale, min) = measures(place);
                    (scale, *level, min)
                }));
            }
        }
        Self { format, dims, parts, weights }
    }

    fn matrix(&self, device: &Device) -> QuantizedMatrix {
        QuantizedMatrix::new(self.format, self.dims, self.parts.clone(), device).unwrap()
    }

    fn weight(&self, output: usize, input: usize) -> (f64, f64) {
        let (scale, level, min) = self.weights[output * self.dims[1] + input];
        (scale * level + min, (scale * level).abs() + min.abs())
    }

    /// For each number of the product what it is, and how large its terms are together.
    fn product(&self, x: &[f64], bias: Option<&[f64]>) -> Vec<(f64, f64)> {
        let [outputs, inputs] = self.dims;
        let rows = x.chunks_exact(inputs);
        let product = rows.flat_map(|row| {
            (0..outputs).map(move |output| {
                let start = bias.map_or(0.0, |bias| bias[output]);
                let terms = row.iter().enumerate().map(|(input, x)| {
                    let (weight, size) = self.weight(output, input);
                    (x * weight, x.abs() * size)
                });
                terms.fold((start, start.abs()), |sum, term| (sum.0 + term.0, sum.1 + term.1))
            })
        });
        product.collect()
    }
}

/// 32 levels, less that of zero, and their bytes.
fn block_of(format: WeightFormat, rng: &mut ChaCha8Rng) -> ([f64; 32], Vec<u8>) {
    let zero = match format {
        WeightFormat::Q4_0 | WeightFormat::Q4Group128 => 8.0,
        _ => 0.0,
    };
    match format {
        WeightFormat::Q8_0
        | WeightFormat::Q5_1
        | WeightFormat::Q5K
        | WeightFormat::Q6K
        | WeightFormat::Q8Group128 => {
            let levels: [i8; 32] = std::array::from_fn(|_| rng.random());
            (levels.map(f64::from), levels.map(i8::cast_unsigned).to_vec())
        }
        _ => {
            let levels: [u8; 32] = std::array::from_fn(|_| rng.random_range(0..16));
            let bytes = (0..16).map(|at| levels[at] + 16 * levels[at + 16]).collect();
            (levels.map(|level| f64::from(level) - zero), bytes)
        }
    }
}

fn words(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|four| i32::from_le_bytes(four.try_into().unwrap())).collect()
}

const CASES: [Case; 7] = [
    case(1, 256, 1, false),
    case(1, 2304, 70, true),
    case(3, 512, 33, true),
    case(5, 1024, 129, false),
    case(9, 256, 40, true),
    case(MOST_QUANTIZED_LINEAR_ROWS, 256, 65, false),
    case(70, 768, 130, true),
];

/// The product of whoever answers for a device: its kernels, or the host.
fn product(input: QuantizedLinearInput, ops: &dyn Ops, name: &str) -> Tensor<2> {
    if name == "flex" || input.x.dims()[0] > MOST_QUANTIZED_LINEAR_ROWS {
        return ops.quantized_linear(input).unwrap();
    }
    quantized_linear(input).unwrap()
}

#[test]
fn products_with_quantized_weights() {
    let cases: Vec<(WeightFormat, Case)> =
        FORMATS.into_iter().flat_map(|format| CASES.map(|case| (format, case))).collect();
    each_case(backends(), &cases, |backend, dtype, &(format, case)| {
        let Case { rows, inputs, outputs, bias } = case;
        let drawn = Drawn::new(format, [outputs, inputs]);
        let weight = drawn.matrix(&backend.device);
        let mut noise = Noise::new(rows as u64);
        let mut tensor =
            |rows, columns| noise_matrix(&mut noise, [rows, columns], dtype, &backend.device);
        let x = tensor(rows, inputs);
        let bias: Option<Tensor<1>> = bias.then(|| tensor(1, outputs).reshape([outputs]));
        let of_bias = bias.as_ref().map(f64s);
        let expected = drawn.product(&f64s(&x), of_bias.as_deref());
        let ops = best();
        poison(&backend.device, &[rows * outputs, inputs * outputs]);
        let input = QuantizedLinearInput { x, weight, bias };
        let found = product(input.clone(), ops.as_ref(), &backend.name);
        assert_eq!((found.dims(), found.dtype()), ([rows, outputs], dtype));
        // More rows than the kernel takes are multiplied with expanded weights, which are of the
        // type of the rows; f32 is Burn's own product, which rounds on tensor cores.
        let expands = backend.name != "flex" && rows > MOST_QUANTIZED_LINEAR_ROWS;
        let of_weight = match (expands, dtype) {
            (false, _) => 0.0,
            (_, DType::F32) if !backend.name.starts_with("cuda") => 0.0,
            (_, DType::F32) => 2.0_f64.powi(-10),
            (_, DType::F16) => 2.0_f64.powi(-11),
            _ => 2.0_f64.powi(-8),
        };
        let what = format!("{}, {format:?}, {case:?}", backend.name);
        assert_products(&numbers(found), &expected, of_weight, dtype, &what);
        assert_eq!(ops.fallbacks(), [], "{}", backend.name);
        let again = [(); 2].map(|()| numbers(product(input.clone(), ops.as_ref(), &backend.name)));
        assert_eq!(again[0], again[1], "two runs give the same bits");
    });
}

#[test]
fn weights_are_those_of_the_format() {
    for backend in backends() {
        for format in FORMATS {
            let drawn = Drawn::new(format, [37, 512]);
            let matrix = drawn.matrix(&backend.device);
            let close = |found: Vec<f32>, rows: &[usize], what: &str| {
                let places = rows.iter().flat_map(|&row| (0..512).map(move |input| (row, input)));
                assert_eq!(found.len(), rows.len() * 512, "{what}");
                for (found, (row, input)) in found.into_iter().zip(places) {
                    let (weight, size) = drawn.weight(row, input);
                    let off = (f64::from(found) - weight).abs();
                    assert!(off <= 1.2e-7 * size, "{what}, {format:?}: {found}, not {weight}");
                }
            };
            let all: Vec<usize> = (0..37).collect();
            close(numbers(matrix.dequantize()), &all, "all");
            if backend.name != "flex" {
                let turned = dequantize(&matrix, DType::F32).unwrap();
                assert_eq!(turned.dims(), [512, 37]);
                close(numbers(turned.transpose()), &all, "kernel");
            }
            let rows = [36, 0, 5];
            let picked = Tensor::<1, Int>::from_data(rows.map(|row| row as i32), &backend.device);
            close(numbers(matrix.select(picked)), &rows, "select");
            let stacked = QuantizedMatrix::stacked(&[matrix.clone(), matrix.clone()]).unwrap();
            assert_eq!(stacked.dims(), [74, 512]);
            let twice: Vec<usize> = all.iter().chain(&all).copied().collect();
            close(numbers(stacked.dequantize()), &twice, "stacked");
            assert_eq!(stacked.bytes(), 2 * matrix.bytes());
        }
    }
}

#[test]
fn matrices_of_two_formats_are_not_stacked() {
    let matrix = |format, inputs| Drawn::new(format, [2, inputs]).matrix(&host());
    let first = matrix(WeightFormat::Q4_0, 128);
    for other in [matrix(WeightFormat::Q8_0, 128), matrix(WeightFormat::Q4_0, 256)] {
        assert!(QuantizedMatrix::stacked(&[first.clone(), other]).is_none());
    }
}

/// Levels are the nearest: no weight is off by more than half a step.
#[test]
fn weights_are_quantized_to_the_nearest_level() {
    let mut noise = Noise::new(5);
    let (outputs, inputs) = (6, 256);
    let weights: Vec<f32> = numbers(noise.tensor([1, 1, outputs, inputs], &host()));
    for format in
        [WeightFormat::Q8_0, WeightFormat::Q4_0, WeightFormat::Q8Group128, WeightFormat::Q4Group128]
    {
        let matrix =
            QuantizedMatrix::quantize(format, [outputs, inputs], &weights, &host()).unwrap();
        let scales = numbers(matrix.scales().clone());
        let found = numbers(matrix.dequantize());
        let mut apart = 0;
        for (index, (found, weight)) in found.iter().zip(&weights).enumerate() {
            let step = scales[index / format.group()].abs();
            // Four bits have a level less on the other side of zero.
            let cut = format.bits() == 4 && weight.abs() > 7.0 * step;
            let most = if cut { 1.0 } else { 0.5 } * step * 1.01;
            assert!((found - weight).abs() <= most, "{format:?}: {found} for {weight}, {step}");
            apart += usize::from(found != weight);
        }
        assert!(apart > weights.len() / 2);
    }
    let refused = |format, inputs, weights: &[f32]| {
        QuantizedMatrix::quantize(format, [1, inputs], weights, &host()).unwrap_err()
    };
    let expected = RefusedBy("quantize_weights").value("inputs", 33, "a multiple of 32");
    assert_eq!(refused(WeightFormat::Q8_0, 33, &[0.0; 33]), expected);
    let error = refused(WeightFormat::Q4_1, 32, &[0.0; 32]);
    assert_eq!(
        error.to_string(),
        "quantize_weights: minima or factors is 1, expected a format without"
    );
    let error = refused(WeightFormat::Q8_0, 32, &[f32::NAN; 32]);
    assert_eq!(
        error.to_string(),
        "quantize_weights: weights without a scale is 1, expected finite weights"
    );
}

#[test]
fn matrices_that_do_not_fit_are_refused() {
    let drawn = Drawn::new(WeightFormat::Q4K, [3, 512]);
    let refused = |change: &dyn Fn(&mut QuantizedParts)| {
        let mut parts = drawn.parts.clone();
        change(&mut parts);
        let matrix = QuantizedMatrix::new(drawn.format, drawn.dims, parts, &host());
        matrix.unwrap_err().to_string()
    };
    let of = |what: &str| format!("quantized_matrix: {what}");
    assert_eq!(refused(&|all| all.words.truncate(7)), of("words is [7], expected [192]"));
    assert_eq!(refused(&|all| all.scales.truncate(5)), of("scales is [5], expected [6]"));
    assert_eq!(refused(&|all| all.mins.clear()), of("mins is [0], expected [6]"));
    assert_eq!(refused(&|all| all.factors.push(1)), of("factors is [25], expected [24]"));
    let dims = |dims| {
        let matrix = QuantizedMatrix::new(drawn.format, dims, drawn.parts.clone(), &host());
        matrix.unwrap_err().to_string()
    };
    assert_eq!(dims([3, 500]), of("inputs is 500, expected a multiple of 256"));
    assert_eq!(dims([0, 512]), of("outputs is 0, expected 1 or more"));
    assert_eq!(dims([usize::MAX, 512]), of(&format!("words is [192], expected [{}]", usize::MAX)));
}

#[test]
fn quantized_linear_refuses() {
    let by = RefusedBy("quantized_linear");
    let of_host = QuantizedLinearInput {
        x: Tensor::zeros([1, 256], &host()),
        weight: Drawn::new(WeightFormat::Q4_0, [7, 256]).matrix(&host()),
        bias: None,
    };
    assert_eq!(quantized_linear(of_host).unwrap_err(), by.device());
    for backend in backends() {
        let ops = best();
        let weight = Drawn::new(WeightFormat::Q4_0, [7, 256]).matrix(&backend.device);
        let zeros = |rows, columns| Tensor::zeros([rows, columns], (&backend.device, DType::F32));
        let call = |x, bias| {
            ops.quantized_linear(QuantizedLinearInput { x, weight: weight.clone(), bias })
        };
        let error = call(zeros(2, 250), None).unwrap_err();
        assert_eq!(error, by.shape("x", &[2, 250], &[2, 256]));
        let error = call(zeros(2, 256), Some(zeros(1, 5).reshape([5]))).unwrap_err();
        assert_eq!(error, by.shape("bias", &[5], &[7]));
        assert_eq!(call(zeros(0, 256), None).unwrap().dims(), [0, 7]);
        if backend.device.supports_dtype(DType::F16) {
            let half = zeros(1, 7).reshape([7]).cast(DType::F16);
            assert_eq!(call(zeros(2, 256), Some(half)).unwrap_err(), by.half("bias"));
        }
        if backend.name == "flex" {
            continue;
        }
        let (rows, most) = (MOST_QUANTIZED_LINEAR_ROWS + 1, MOST_QUANTIZED_LINEAR_ROWS);
        let input =
            QuantizedLinearInput { x: zeros(rows, 256), weight: weight.clone(), bias: None };
        assert_eq!(quantized_linear(input).unwrap_err(), by.size("rows", rows, most));
    }
}
