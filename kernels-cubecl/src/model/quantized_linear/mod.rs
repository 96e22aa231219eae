mod backend;
mod kernel;
mod operands;
mod weights;

use briquette_ops::{QuantizedLinearInput, QuantizedMatrix, Result};
use burn::{
    backend::{Dispatch, cubecl::dtype_to_storage_type},
    tensor::{DType, Device, Tensor},
};

use self::{
    backend::QuantizedLinearBackend,
    kernel::{OUTPUTS, ROWS, UNITS},
    operands::Weights,
    weights::of_piece,
};
use crate::common::{check::Check, optional::Optional, processors::known_processors};

/// Rows of `x` that [`quantized_linear`] takes at most.
pub const MOST_QUANTIZED_LINEAR_ROWS: usize = 32;

/// Rows for which it is faster everywhere, also where Burn's product takes cooperative matrices
/// through wgpu.
const COOPERATIVE_ROWS: usize = 8;

/// The product of rows with a matrix of quantized weights, `[rows, outputs]`, of the type of `x`.
/// Sums are f32 and rounded once.
///
/// For few rows, which a decode step has, reading the weights is all that it costs, and they are
/// read as they lie: 16 bytes of a row at a time, 32 or 16 levels, by 4 to 32 units beside each
/// other, each with two rows of weights. Levels become f32 exactly, are multiplied with up to four
/// rows of `x`, and the sum of a piece takes the scale and the minimum of its block. Weights are
/// read once for each four rows, from caches after the first time. No atomics: two runs give the
/// same bits.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, there is no row, there are
/// more than [`MOST_QUANTIZED_LINEAR_ROWS`], or the device has no kernels or cannot launch so much.
pub fn quantized_linear(input: QuantizedLinearInput) -> Result<Tensor<2>> {
    let check = Check::new("quantized_linear", &input.x.device())?;
    input.check()?;
    let QuantizedLinearInput { x, weight, bias } = input;
    let (rows, [outputs, _]) = (x.dims()[0], weight.dims());
    check.some([("rows", rows)])?;
    check.at_most("rows", rows, MOST_QUANTIZED_LINEAR_ROWS)?;
    check_matrix(&check, &weight)?;
    check.cubes([outputs.div_ceil(OUTPUTS * UNITS / 32), rows.div_ceil(ROWS), 1])?;
    check.tensors(7)?;
    let (weights, bias, format) = (Weights::of(&weight), Optional::of(bias), weight.format());
    Ok(Tensor::from_dispatch(Dispatch::quantized_linear(x.into_dispatch(), weights, bias, format)))
}

/// Quantized weights as numbers of a type, `[inputs, outputs]`: what a product of many rows is made
/// with.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if the device has no kernels or cannot launch so much.
pub fn dequantize(weight: &QuantizedMatrix, dtype: DType) -> Result<Tensor<2>> {
    let check = Check::new("dequantize", &weight.device())?;
    check_matrix(&check, weight)?;
    let ([outputs, inputs], format) = (weight.dims(), weight.format());
    let pieces = inputs / of_piece(format);
    check.cubes([outputs.div_ceil(UNITS), pieces, 1])?;
    check.tensors(5)?;
    let expanded = Dispatch::expand_weights(Weights::of(weight), format, inputs, dtype);
    Ok(Tensor::from_dispatch(expanded))
}

/// Whether [`quantized_linear`] is faster for so many rows than a product with expanded weights.
///
/// Through wgpu cooperative matrices, which Burn's product takes for 16-bit numbers in SPIR-V, take
/// 0.25 ms for 32 rows of 28,672 × 4,096 weights, and expanding them 0.05 to 0.1; the kernel takes
/// 0.16 ms (Q8_0) and 0.27 (Q4_0) for 8 rows, 0.59 and 1.05 for 32 (H200, 2026-11-29,
/// benches/results). In f32 and in WGSL it is faster for all that it takes.
pub(crate) fn takes_quantized(rows: usize, device: &Device, dtype: DType) -> bool {
    if !(COOPERATIVE_ROWS + 1..=MOST_QUANTIZED_LINEAR_ROWS).contains(&rows) {
        return rows <= COOPERATIVE_ROWS;
    }
    let Ok(check) = Check::new("quantized_linear", device) else { return false };
    let element = dtype_to_storage_type(dtype);
    let cooperative = &check.client().properties().features.matmul.cmma;
    known_processors(check.client()).is_some()
        || cooperative.iter().all(|tile| tile.a_type != element)
}

fn check_matrix(check: &Check, weight: &QuantizedMatrix) -> Result<()> {
    check.countable("weight", &weight.dims())
}
