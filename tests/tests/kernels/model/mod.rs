//! The model around a cache: products with weights, norms and gates.

use briquette_tests::{
    backends::{Backend, backends},
    inputs::Noise,
};
use burn::tensor::{DType, Device, Tensor};

use crate::common::{f64s, noise_matrix};

mod activation;
mod gated_linear;
mod linear;
mod most_likely;
mod quantized_linear;
mod rms_norm_gated;

/// All backends but the host.
fn accelerators() -> Vec<Backend> {
    backends().into_iter().filter(|backend| backend.name != "flex").collect()
}

/// Sizes of a product.
#[derive(Clone, Copy, Debug)]
struct Case {
    rows: usize,
    inputs: usize,
    outputs: usize,
    bias: bool,
}

const fn case(rows: usize, inputs: usize, outputs: usize, bias: bool) -> Case {
    Case { rows, inputs, outputs, bias }
}

impl Case {
    /// Rows, weights and bias of normal noise.
    fn operands(
        self,
        seed: usize,
        dtype: DType,
        device: &Device,
    ) -> (Tensor<2>, Tensor<2>, Option<Tensor<1>>) {
        let Self { rows, inputs, outputs, bias } = self;
        let mut noise = Noise::new(seed as u64);
        let mut tensor = |rows, columns| noise_matrix(&mut noise, [rows, columns], dtype, device);
        let (x, weight) = (tensor(rows, inputs), tensor(inputs, outputs));
        (x, weight, bias.then(|| tensor(1, outputs).reshape([outputs])))
    }
}

/// For each number of a product what it is, and how large its terms are together.
fn sums(x: &Tensor<2>, weight: &Tensor<2>, bias: Option<&Tensor<1>>) -> Vec<(f64, f64)> {
    let [rows, inputs] = x.dims();
    let outputs = weight.dims()[1];
    let (of_x, of_weight) = (f64s(x), f64s(weight));
    let of_bias = bias.map_or(vec![0.0; outputs], f64s);
    let sum = |place: usize| {
        let (row, output) = (place / outputs, place % outputs);
        let terms = (0..inputs)
            .map(|input| of_x[row * inputs + input] * of_weight[input * outputs + output]);
        let terms = terms.chain([of_bias[output]]);
        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
    };
    (0..rows * outputs).map(sum).collect()
}
