use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::{
    format::{BLOCK, WeightFormat},
    parts::QuantizedParts,
};
use crate::error::{OpError, Result};

/// A matrix of quantized weights, `[outputs, inputs]`: the transposed one of a linear layer, as
/// checkpoints have it, or a table of embeddings.
#[derive(Clone, Debug)]
pub struct QuantizedMatrix {
    format: WeightFormat,
    dims: [usize; 2],
    words: Tensor<2, Int>,
    scales: Tensor<2>,
    mins: Option<Tensor<2>>,
    factors: Option<Tensor<2, Int>>,
}

const NAME: &str = "quantized_matrix";

impl QuantizedMatrix {
    /// Sends the numbers of a matrix, `[outputs, inputs]`, to a device. Where it has no f16, scales
    /// and minima are f32.
    ///
    /// # Errors
    /// [`OpError::Value`] if there is no row or input, or `inputs` is no multiple of the format's
    /// group; [`OpError::Shape`] if `parts` are not those of such a matrix.
    pub fn new(
        format: WeightFormat,
        [outputs, inputs]: [usize; 2],
        parts: QuantizedParts,
        device: &Device,
    ) -> Result<Self> {
        let group = format.group();
        let whole = inputs > 0 && inputs.is_multiple_of(group);
        OpError::check_value(NAME, "inputs", inputs, whole, format!("a multiple of {group}"))?;
        OpError::check_value(NAME, "outputs", outputs, outputs > 0, "1 or more")?;
        let QuantizedParts { words, scales, mins, factors } = parts;
        let groups = inputs / group;
        let of_mins = if format.has_min() { groups } else { 0 };
        for (name, found, width) in [
            ("words", words.len(), format.words(inputs)),
            ("scales", scales.len(), groups),
            ("mins", mins.len(), of_mins),
            ("factors", factors.len(), format.factor_words(inputs)),
        ] {
            let expected = outputs.saturating_mul(width);
            OpError::check_shape(NAME, name, [found], [expected])?;
        }
        let dtype = scale_type(device);
        let ints = |numbers: Vec<i32>| {
            let dims = [outputs, numbers.len() / outputs];
            Tensor::<2, Int>::from_data(TensorData::new(numbers, dims), (device, DType::I32))
        };
        let floats = |numbers| {
            let data = TensorData::new(numbers, [outputs, groups]);
            Tensor::<2>::from_data(data, (device, dtype))
        };
        // Where Burn puts weights that it loads.
        let send = |(words, scales, mins, factors)| Self {
            format,
            dims: [outputs, inputs],
            words: ints(words),
            scales: floats(scales),
            mins: format.has_min().then(|| floats(mins)),
            factors: format.has_factors().then(|| ints(factors)),
        };
        Ok(device.memory_persistent_allocations((words, scales, mins, factors), send))
    }

    /// How its weights are quantized.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// `[outputs, inputs]`
    pub fn dims(&self) -> [usize; 2] {
        self.dims
    }

    /// The device that has it.
    pub fn device(&self) -> Device {
        self.words.device()
    }

    /// Levels, `[outputs, words]`, see [`QuantizedParts::words`].
    pub fn words(&self) -> &Tensor<2, Int> {
        &self.words
    }

    /// Scale of each group, `[outputs, groups]`, f16 or f32.
    pub fn scales(&self) -> &Tensor<2> {
        &self.scales
    }

    /// Minimum of each group, `[outputs, groups]`, f16 or f32.
    pub fn mins(&self) -> Option<&Tensor<2>> {
        self.mins.as_ref()
    }

    /// Factors of scales, and of minima, `[outputs, words]`, see [`QuantizedParts::factors`].
    pub fn factors(&self) -> Option<&Tensor<2, Int>> {
        self.factors.as_ref()
    }

    /// The bytes that it takes on its device.
    pub fn bytes(&self) -> usize {
        let floats = |x: &Tensor<2>| x.dims().iter().product::<usize>() * x.dtype().size();
        let ints = |x: &Tensor<2, Int>| x.dims().iter().product::<usize>() * x.dtype().size();
        let more = self.mins.as_ref().map_or(0, floats) + self.factors.as_ref().map_or(0, ints);
        ints(&self.words) + floats(&self.scales) + more
    }

    /// The bytes that a matrix of this format will take on a device.
    pub fn bytes_of(format: WeightFormat, [outputs, inputs]: [usize; 2], device: &Device) -> usize {
        let per_group = if format.has_min() { 2 } else { 1 };
        let floats = inputs / format.group() * per_group * scale_type(device).size();
        let words = format.words(inputs) + format.factor_words(inputs);
        outputs * (words * DType::I32.size() + floats)
    }

    /// The matrices one below the other, of one format and one number of inputs, or `None`.
    pub fn stacked(matrices: &[Self]) -> Option<Self> {
        let first = matrices.first()?;
        let inputs = first.dims[1];
        let alike = |other: &Self| other.format == first.format && other.dims[1] == inputs;
        if !matrices.iter().all(alike) {
            return None;
        }
        let outputs = matrices.iter().map(|matrix| matrix.dims[0]).sum();
        let join = |matrices: Vec<Self>| {
            let floats = |of: fn(&Self) -> Option<&Tensor<2>>| {
                let parts: Option<Vec<_>> = matrices.iter().map(|one| of(one).cloned()).collect();
                parts.map(|parts| Tensor::cat(parts, 0))
            };
            let ints = |of: fn(&Self) -> Option<&Tensor<2, Int>>| {
                let parts: Option<Vec<_>> = matrices.iter().map(|one| of(one).cloned()).collect();
                parts.map(|parts| Tensor::cat(parts, 0))
            };
            Some(Self {
                format: matrices.first()?.format,
                dims: [outputs, inputs],
                words: ints(|one| Some(&one.words))?,
                scales: floats(|one| Some(&one.scales))?,
                mins: floats(Self::mins),
                factors: ints(Self::factors),
            })
        };
        first.device().memory_persistent_allocations(matrices.to_vec(), join)
    }

    /// Rows of these numbers, in f32: `[rows]` -> `[rows, inputs]`.
    pub fn select(&self, rows: Tensor<1, Int>) -> Tensor<2> {
        let select = |x: &Tensor<2>| x.clone().select(0, rows.clone());
        let words = |x: &Tensor<2, Int>| x.clone().select(0, rows.clone());
        Self {
            format: self.format,
            dims: [rows.dims()[0], self.dims[1]],
            words: words(&self.words),
            scales: select(&self.scales),
            mins: self.mins.as_ref().map(select),
            factors: self.factors.as_ref().map(words),
        }
        .dequantize()
    }

    /// All weights, `[outputs, inputs]`, in f32.
    pub fn dequantize(&self) -> Tensor<2> {
        let [outputs, inputs] = self.dims;
        let block = self.format.block();
        let blocks = inputs / block;
        let levels = match self.format.bits() {
            8 => signed_bytes(self.words.clone(), inputs),
            _ => halves(self.words.clone(), [outputs, inputs / BLOCK]),
        };
        let levels = levels.sub_scalar(self.format.zero()).float().cast(DType::F32);
        let levels: Tensor<3> = levels.reshape([outputs, blocks, block]);
        let (scales, mins) = self.of_blocks();
        let weights = levels * scales.unsqueeze_dim::<3>(2);
        let weights = match mins {
            Some(mins) => weights + mins.unsqueeze_dim::<3>(2),
            None => weights,
        };
        weights.reshape([outputs, inputs])
    }

    /// Scale and minimum of each block, `[outputs, blocks]`, in f32.
    fn of_blocks(&self) -> (Tensor<2>, Option<Tensor<2>>) {
        let [outputs, inputs] = self.dims;
        let blocks = inputs / self.format.block();
        let each = self.format.group() / self.format.block();
        let repeated = |groups: &Tensor<2>| {
            let groups = groups.clone().cast(DType::F32).unsqueeze_dim::<3>(2);
            let blocks: Tensor<2> =
                groups.expand([outputs, blocks / each, each]).reshape([outputs, blocks]);
            blocks
        };
        let (scales, mins) = (repeated(&self.scales), self.mins.as_ref().map(repeated));
        let Some(factors) = &self.factors else { return (scales, mins) };
        let Some(mins) = mins else {
            let factors = signed_bytes(factors.clone(), blocks).float().cast(DType::F32);
            return (scales * factors, None);
        };
        let bytes: Tensor<4, Int> =
            bytes(factors.clone()).reshape([outputs, blocks / each, 2, each]);
        let factor = |of| {
            let one: Tensor<2, Int> = bytes.clone().narrow(2, of, 1).reshape([outputs, blocks]);
            one.float().cast(DType::F32)
        };
        (scales * factor(0), Some((mins * factor(1)).neg()))
    }
}

/// The type of scales and minima on a device.
fn scale_type(device: &Device) -> DType {
    if device.supports_dtype(DType::F16) { DType::F16 } else { DType::F32 }
}

/// The bytes of words, `[rows, 4 * words]`, the lowest first.
fn bytes(words: Tensor<2, Int>) -> Tensor<2, Int> {
    let [rows, width] = words.dims();
    let words: Tensor<3, Int> = words.unsqueeze_dim(2);
    let byte = |place| words.clone().bitwise_right_shift_scalar(8 * place).bitwise_and_scalar(255);
    Tensor::cat((0..4).map(byte).collect(), 2).reshape([rows, 4 * width])
}

fn signed_bytes(words: Tensor<2, Int>, inputs: usize) -> Tensor<2, Int> {
    let bytes = bytes(words);
    let rows = bytes.dims()[0];
    bytes.bitwise_xor_scalar(128).sub_scalar(128).reshape([rows, inputs])
}

/// The lower halves of the bytes of each block, then the upper ones.
fn halves(words: Tensor<2, Int>, [rows, blocks]: [usize; 2]) -> Tensor<2, Int> {
    let bytes: Tensor<3, Int> = bytes(words).reshape([rows, blocks, BLOCK / 2]);
    let low = bytes.clone().bitwise_and_scalar(15);
    let high = bytes.bitwise_right_shift_scalar(4);
    Tensor::cat(vec![low, high], 2).reshape([rows, blocks * BLOCK])
}
