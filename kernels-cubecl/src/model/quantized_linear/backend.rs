use briquette_ops::WeightFormat;
use burn_cubecl::kernel::into_contiguous;

use super::{
    kernel::{self, ProductBlueprint, ROWS, UNITS},
    operands::{Minima, Weights},
    weights::{PIECE, of_piece},
};
use crate::common::{backend::*, optional::Optional};

/// The kernels as operations of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait QuantizedLinearBackend: Backend {
    /// See [`super::quantized_linear`].
    #[fusion(dtype = x, shape = Shape::from([x[0], weights.words.shape[0]]))]
    fn quantized_linear(
        x: FloatTensor<Self>,
        #[extension_type] weights: Weights<Self>,
        #[extension_type] bias: Optional<Self>,
        format: WeightFormat,
    ) -> FloatTensor<Self>;

    /// See [`super::dequantize`].
    #[fusion(dtype = *dtype, shape = Shape::from([*inputs, weights.words.shape[0]]))]
    fn expand_weights(
        #[extension_type] weights: Weights<Self>,
        format: WeightFormat,
        inputs: usize,
        dtype: DType,
    ) -> FloatTensor<Self>;
}

/// Words, scales, minima and factors; of what a format has not another tensor stands in.
fn tensors(weights: Weights<CubeBackend>) -> [CubeTensor; 4] {
    let Weights { words, scales, minima } = weights;
    let (mins, factors) = match minima {
        Minima::Nothing => (scales.clone(), words.clone()),
        Minima::Factors { factors } => (scales.clone(), factors),
        Minima::OfGroups { mins } => (mins, words.clone()),
        Minima::WithFactors { mins, factors } => (mins, factors),
    };
    [words, scales, mins, factors].map(into_contiguous)
}

/// Units that share the weights of an output.
fn lanes(format: WeightFormat, inputs: usize) -> usize {
    (inputs / of_piece(format)).next_power_of_two().clamp(4, 32)
}

impl QuantizedLinearBackend for CubeBackend {
    fn quantized_linear(
        x: FloatTensor<Self>,
        weights: Weights<Self>,
        bias: Optional<Self>,
        format: WeightFormat,
    ) -> FloatTensor<Self> {
        let x = into_contiguous(x);
        let [words, scales, mins, factors] = tensors(weights);
        let (rows, inputs, outputs) = (x.shape()[0], x.shape()[1], words.shape()[0]);
        let output = empty(&x, [rows, outputs], x.dtype);
        let bias = bias.into_option();
        let biased = bias.is_some();
        // Never looked at where there is none.
        let bias = bias.unwrap_or_else(|| x.clone());
        let lanes = lanes(format, inputs);
        let blueprint = ProductBlueprint { format, lanes, rows: rows.min(ROWS), biased };
        let types = [x.dtype, scales.dtype].map(dtype_to_storage_type);
        let cubes = [outputs.div_ceil(blueprint.outputs()), rows.div_ceil(blueprint.rows)];
        kernel::product::launch(
            &x.client.clone(),
            CubeCount::Static(cubes[0] as u32, cubes[1] as u32, 1),
            CubeDim::new_1d(UNITS as u32),
            PIECE,
            x.into_tensor_arg(),
            words.into_tensor_arg(),
            scales.into_tensor_arg(),
            mins.into_tensor_arg(),
            factors.into_tensor_arg(),
            bias.into_tensor_arg(),
            output.clone().into_tensor_arg(),
            blueprint,
            types,
        );
        output
    }

    fn expand_weights(
        weights: Weights<Self>,
        format: WeightFormat,
        inputs: usize,
        dtype: DType,
    ) -> FloatTensor<Self> {
        let [words, scales, mins, factors] = tensors(weights);
        let outputs = words.shape()[0];
        let expanded = empty(&words, [inputs, outputs], dtype);
        let types = [dtype, scales.dtype].map(dtype_to_storage_type);
        let cubes = [outputs.div_ceil(UNITS), inputs / of_piece(format)];
        kernel::expand::launch(
            &words.client.clone(),
            CubeCount::Static(cubes[0] as u32, cubes[1] as u32, 1),
            CubeDim::new_1d(UNITS as u32),
            PIECE,
            words.into_tensor_arg(),
            scales.into_tensor_arg(),
            mins.into_tensor_arg(),
            factors.into_tensor_arg(),
            expanded.clone().into_tensor_arg(),
            format,
            types,
        );
        expanded
    }
}
