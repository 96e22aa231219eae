//! Products of few rows with weights: those of a decode step of Llama 3 8B, one by one and all in
//! turn.

use anyhow::Result;
use briquette::ops::{Ops, Reference};
use briquette_ops::LinearInput;
use burn::tensor::{DType, Tensor};

use crate::{
    bench::{Bench, Case, Difference, Variant, difference},
    measure::keep,
    model::Dimensions,
};

/// Rows of a product; the most are those of a prompt.
pub(crate) const ROWS: [usize; 8] = [1, 8, 16, 32, 64, 256, 1024, 32_768];
/// Columns at either end of a product that are checked.
const CHECKED: usize = 32;
/// Rows of a product that are checked.
const CHECKED_ROWS: usize = 1024;

/// The names of products of so many rows, by their matrices in the order of [`sizes`], then of all
/// in turn; of a prompt those of a layer.
pub(crate) fn names(rows: usize) -> impl Iterator<Item = String> {
    let all = ["qkv", "output", "gate-up", "down", "head", "step"];
    let count = if rows == 32_768 { 4 } else { all.len() };
    all.into_iter().take(count).map(move |matrix| format!("linear/{rows}/{matrix}"))
}

/// Inputs and outputs of the matrices of a layer, queries with keys and values and gate with up as
/// one each, and of the head.
fn sizes(of: Dimensions) -> [[usize; 2]; 5] {
    let queries = of.query_heads * of.head_dim;
    let all = queries + 2 * of.kv_heads * of.head_dim;
    let Dimensions { hidden, inner, vocabulary, .. } = of;
    [[hidden, all], [queries, hidden], [hidden, 2 * inner], [inner, hidden], [hidden, vocabulary]]
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    if !ROWS.into_iter().flat_map(names).any(|row| bench.wants(&row)) {
        return Ok(());
    }
    let dimensions = if bench.quick { Dimensions::TINY } else { Dimensions::LLAMA_3_8B };
    let sizes = sizes(dimensions);
    // One after another, and as they lie in a model.
    let weights = sizes.map(|[inputs, outputs]| {
        let head = outputs == dimensions.vocabulary;
        let count = if head { 1 } else { dimensions.layers };
        let scale = (inputs as f64).powf(-0.5);
        // As in a model that is loaded: K-major where kernels multiply faster so.
        let matrix = |_| {
            let weight = bench.noise([outputs, inputs], bench.dtype) * scale;
            let weight = weight.transpose();
            match bench.ops.prefers_k_major(&weight) {
                true => weight,
                // A reshape to its own shape would leave it as it lies.
                false => weight.reshape([inputs * outputs]).reshape([inputs, outputs]),
            }
        };
        (0..count).map(matrix).collect::<Vec<Tensor<2>>>()
    });
    for rows in ROWS {
        let x = sizes.map(|[inputs, _]| bench.noise([rows, inputs], bench.dtype));
        for (matrix, row) in names(rows).enumerate() {
            if !bench.wants(&row) {
                continue;
            }
            if matrix == sizes.len() {
                step(bench, &row, &x, &weights);
            } else {
                one(bench, &row, &x[matrix], &weights[matrix]);
            }
        }
    }
    Ok(())
}

/// Bytes that a product reads and writes, and its operations.
fn work(bench: &Bench, x: &Tensor<2>, weight: &Tensor<2>) -> (f64, f64) {
    let ([rows, inputs], outputs) = (x.dims(), weight.dims()[1]);
    let numbers = inputs * outputs + rows * (inputs + outputs);
    (numbers as f64 * bench.number(), 2.0 * (rows * inputs * outputs) as f64)
}

fn one(bench: &mut Bench, row: &str, x: &Tensor<2>, weights: &[Tensor<2>]) {
    let (bytes, operations) = work(bench, x, &weights[0]);
    let ([rows, inputs], outputs) = (x.dims(), weights[0].dims()[1]);
    let case = Case { row, shape: format!("{rows} × {inputs} to {outputs}"), bytes, operations };
    let sets = bench.sets(bytes).min(weights.len());
    each_variant(bench, |bench, name, ops| {
        let product = |set: usize| product(ops, x, &weights[set]);
        let check = || check(x, &weights[0], product(0)?);
        bench.run(&case, name, sets, Some(&check), &|set| keep(product(set)?));
    });
}

fn product(ops: &dyn Ops, x: &Tensor<2>, weight: &Tensor<2>) -> Result<Tensor<2>> {
    Ok(ops.linear(LinearInput { x: x.clone(), weight: weight.clone(), bias: None })?)
}

/// The products of all layers in turn, then of the head.
fn step(bench: &mut Bench, row: &str, x: &[Tensor<2>; 5], weights: &[Vec<Tensor<2>>; 5]) {
    let [layers @ .., heads] = weights;
    let all: Vec<(&Tensor<2>, &Tensor<2>)> = (0..layers[0].len())
        .flat_map(|layer| x.iter().zip(layers).map(move |(x, weights)| (x, &weights[layer])))
        .chain(heads.iter().map(|head| (&x[4], head)))
        .collect();
    let (mut bytes, mut operations) = (0.0, 0.0);
    for (x, weight) in &all {
        let work = work(bench, x, weight);
        bytes += work.0;
        operations += work.1;
    }
    let shape = format!("{} rows, {} layers and head", x[0].dims()[0], layers[0].len());
    let case = Case { row, shape, bytes, operations };
    each_variant(bench, |bench, name, ops| {
        bench.run(&case, name, 1, None, &|_| {
            let products = all.iter().map(|(x, weight)| product(ops, x, weight));
            keep(products.collect::<Result<Vec<_>>>()?)
        });
    });
}

/// The tensor operation that stands in is Burn's own.
fn each_variant(bench: &mut Bench, mut run: impl FnMut(&mut Bench, &str, &dyn Ops)) {
    if bench.variants.contains(&Variant::Briquette) {
        let ops = bench.ops.clone();
        run(bench, "briquette", ops.as_ref());
    }
    if bench.variants.contains(&Variant::Burn) {
        run(bench, "burn", &Reference);
    }
}

/// A few columns of the last rows of a product, `[rows, outputs]`, in f32 and without a product
/// that would have to be trusted.
///
/// # Errors
/// If the device fails, or there is a NaN.
pub fn check(x: &Tensor<2>, weight: &Tensor<2>, found: Tensor<2>) -> Result<Difference> {
    let ([all, inputs], outputs) = (x.dims(), weight.dims()[1]);
    let (rows, count) = (CHECKED_ROWS.min(all), CHECKED.min(outputs));
    let last = |x: Tensor<2>| x.narrow(0, all - rows, rows);
    let (x, found) = (last(x.clone()), last(found));
    let mut most = (0.0, 0.0);
    for first in [0, outputs - count] {
        let wide = x.clone().cast(DType::F32).reshape([rows, 1, inputs]);
        let columns = weight.clone().narrow(1, first, count).cast(DType::F32).transpose();
        let expected = (wide * columns.reshape([1, count, inputs])).sum_dim(2);
        let own = found.clone().narrow(1, first, count);
        let (off, of) = difference(own, expected.reshape([rows, count]))?;
        most = (f64::max(most.0, off), f64::max(most.1, of));
    }
    Ok(most)
}
