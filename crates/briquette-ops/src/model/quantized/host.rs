//! Products on the host, over weights as they lie.

mod rows;
mod widen;

use burn::tensor::{DType, Device, Tensor, TensorData, f16};
use pulp::Arch;
use rayon::prelude::*;

use self::{
    rows::{Expand, Multiply, RowsOf},
    widen::Widen,
};
use super::{
    format::{BLOCK, WeightFormat},
    matrix::QuantizedMatrix,
};
use crate::{
    error::Result,
    host::{HostInput, View},
};

const INPUT: HostInput = HostInput("quantized_linear");

/// Rows of `x` up to which weights are multiplied as they are read.
const FEW_ROWS: usize = 8;
/// Numbers of a panel of weights that are expanded at a time: 1 MiB.
const PANEL: usize = 1 << 18;

/// `[rows, inputs]` -> `[rows, outputs]`, in f32. A row of weights is read once for all rows of
/// `x`, where these are few; else a panel of rows at a time is expanded, and multiplied by Burn.
pub(super) fn product(x: Tensor<2>, weight: &QuantizedMatrix) -> Result<Tensor<2>> {
    let (device, [rows, _]) = (x.device(), x.dims());
    let matrix = HostMatrix::read(weight)?;
    Ok(match rows {
        0 => Tensor::zeros([0, matrix.outputs], (&device, DType::F32)),
        1..=FEW_ROWS => matrix.multiply(&INPUT.view::<f32, _>(&x)?, rows, &device),
        _ => matrix.multiply_panels(x.cast(DType::F32), &device),
    })
}

/// A matrix whose numbers the host reads where they lie.
struct HostMatrix {
    format: WeightFormat,
    outputs: usize,
    inputs: usize,
    bytes: View<u8>,
    scales: View<f16>,
    mins: Option<View<f16>>,
    factors: Option<View<u8>>,
}

impl HostMatrix {
    fn read(matrix: &QuantizedMatrix) -> Result<Self> {
        let [outputs, inputs] = matrix.dims();
        Ok(Self {
            format: matrix.format(),
            outputs,
            inputs,
            bytes: INPUT.bytes(matrix.words())?,
            scales: INPUT.view(matrix.scales())?,
            mins: matrix.mins().map(|mins| INPUT.view(mins)).transpose()?,
            factors: matrix.factors().map(|factors| INPUT.bytes(factors)).transpose()?,
        })
    }

    /// Rows of weights that a thread takes at a time, so that all have some of them.
    fn rows_of_task(&self) -> usize {
        self.outputs.div_ceil(4 * rayon::current_num_threads()).clamp(8, 128)
    }

    /// `[rows, inputs]` -> `[rows, outputs]`
    fn multiply(&self, x: &[f32], rows: usize, device: &Device) -> Tensor<2> {
        let arch = Arch::new();
        let sums: Vec<f32> = match self.format.has_min() {
            true => x.as_chunks::<BLOCK>().0.iter().map(|block| block.iter().sum()).collect(),
            false => Vec::new(),
        };
        let task = self.rows_of_task();
        // An output has the products with all rows one after another.
        let mut products = vec![0.0; self.outputs * rows];
        products.par_chunks_mut(task * rows).enumerate().for_each_init(
            Measures::default,
            |measures, (number, products)| {
                let weights = self.rows(number * task, products.len() / rows, measures);
                arch.dispatch(Multiply { weights, x, sums: &sums, rows, products });
            },
        );
        let products = TensorData::new(products, [self.outputs, rows]);
        Tensor::<2>::from_data(products, (device, DType::F32)).transpose()
    }

    /// `[rows, inputs]` -> `[rows, outputs]`
    fn multiply_panels(&self, x: Tensor<2>, device: &Device) -> Tensor<2> {
        let arch = Arch::new();
        let x = x.transpose();
        let height = (PANEL / self.inputs).max(1);
        let panels = (0..self.outputs).step_by(height).map(|first| {
            let height = height.min(self.outputs - first);
            let task = height.div_ceil(rayon::current_num_threads());
            let mut panel = vec![0.0; height * self.inputs];
            panel.par_chunks_mut(task * self.inputs).enumerate().for_each_init(
                Measures::default,
                |measures, (number, to)| {
                    let first = first + number * task;
                    let weights = self.rows(first, to.len() / self.inputs, measures);
                    arch.dispatch(Expand { weights, to });
                },
            );
            let panel = TensorData::new(panel, [height, self.inputs]);
            Tensor::<2>::from_data(panel, (device, DType::F32)).matmul(x.clone())
        });
        Tensor::cat(panels.collect(), 0).transpose()
    }

    /// Some rows of weights, with their scales and minima by block.
    fn rows<'a>(&'a self, first: usize, count: usize, to: &'a mut Measures) -> RowsOf<'a> {
        let (group, bytes) = (self.format.group(), self.inputs * self.format.bits() / 8);
        let groups = self.inputs / group;
        let each = group / self.format.block();
        let blocks = groups * each;
        let arch = Arch::new();
        let Measures { groups: of_groups, scales, mins } = to;
        let mut of_rows = |all: &View<f16>, to: &mut Vec<f32>| {
            let all = &all[first * groups..(first + count) * groups];
            to.resize(count * blocks, 0.0);
            if each == 1 {
                return arch.dispatch(Widen { from: all, to });
            }
            of_groups.resize(all.len(), 0.0);
            arch.dispatch(Widen { from: all, to: of_groups });
            for (group, blocks) in of_groups.iter().zip(to.chunks_exact_mut(each)) {
                blocks.fill(*group);
            }
        };
        of_rows(&self.scales, scales);
        if let Some(all) = &self.mins {
            of_rows(all, mins);
        }
        if let Some(factors) = &self.factors {
            let of_group = 4 * self.format.factor_words_of_group();
            let factors = factors[first * groups * of_group..].chunks_exact(of_group);
            for (group, factors) in factors.take(count * groups).enumerate() {
                let blocks = group * each..(group + 1) * each;
                let (of_scale, of_min) = factors.split_at(each);
                let scales = scales[blocks.clone()].iter_mut().zip(of_scale);
                if of_min.is_empty() {
                    scales.for_each(|(scale, factor)| *scale *= f32::from(factor.cast_signed()));
                } else {
                    scales.for_each(|(scale, factor)| *scale *= f32::from(*factor));
                    let mins = mins[blocks].iter_mut().zip(of_min);
                    mins.for_each(|(min, factor)| *min *= -f32::from(*factor));
                }
            }
        }
        RowsOf {
            format: self.format,
            inputs: self.inputs,
            bytes: &self.bytes[first * bytes..(first + count) * bytes],
            scales,
            mins: self.mins.is_some().then_some(mins),
        }
    }
}

/// Scales and minima of some rows, in f32.
#[derive(Default)]
struct Measures {
    /// Those of groups, on their way.
    groups: Vec<f32>,
    scales: Vec<f32>,
    mins: Vec<f32>,
}
