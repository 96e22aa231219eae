//! Products with quantized weights: those of gate and up of Llama 3 8B. One row more than the
//! kernel takes shows what weights cost that are expanded for every product.

use anyhow::Result;
use briquette::ops::Reference;
use briquette_ops::{LinearInput, ModelOps, QuantizedLinearInput, QuantizedMatrix, WeightFormat};

use crate::{
    bench::{Bench, Case, Variant},
    measure::keep,
    model::Dimensions,
};

const FORMATS: [(WeightFormat, &str); 2] =
    [(WeightFormat::Q8_0, "q8_0"), (WeightFormat::Q4_0, "q4_0")];

/// Rows of the products with weights of a format, and their names.
fn products(format: &str) -> [(usize, String); 4] {
    [1, 8, 32, 33].map(|rows| (rows, format!("quantized-linear/{rows}/{format}")))
}

/// The names of all products.
pub(crate) fn names() -> impl Iterator<Item = String> {
    FORMATS.into_iter().flat_map(|(_, format)| products(format)).map(|(_, name)| name)
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let of = if bench.quick { Dimensions::TINY } else { Dimensions::LLAMA_3_8B };
    let (inputs, outputs) = (of.hidden, 2 * of.inner);
    for (format, name) in FORMATS {
        let wanted: Vec<_> =
            products(name).into_iter().filter(|(_, row)| bench.wants(row)).collect();
        if wanted.is_empty() {
            continue;
        }
        // Any numbers do, as long as they differ.
        let weights: Vec<f32> = (0..inputs * outputs)
            .map(|place| (place as u32).wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - 0.5)
            .collect();
        let weight = QuantizedMatrix::quantize(format, [outputs, inputs], &weights, &bench.device)?;
        let whole = weight.dequantize().cast(bench.dtype).transpose();
        for (rows, row) in wanted {
            let x = bench.noise([rows, inputs], bench.dtype);
            let case = Case {
                row: &row,
                shape: format!("{rows} × {inputs} to {outputs}"),
                bytes: weight.bytes() as f64 + (rows * (inputs + outputs)) as f64 * bench.number(),
                operations: 2.0 * (rows * inputs * outputs) as f64,
            };
            if bench.variants.contains(&Variant::Briquette) {
                let ops = bench.ops.clone();
                bench.run(&case, "briquette", 1, None, &|_| {
                    let (x, weight) = (x.clone(), weight.clone());
                    keep(ops.quantized_linear(QuantizedLinearInput { x, weight, bias: None })?)
                });
            }
            // Weights that were expanded once.
            if bench.variants.contains(&Variant::Burn) {
                bench.run(&case, "burn", 1, None, &|_| {
                    let (x, weight) = (x.clone(), whole.clone());
                    keep(Reference.linear(LinearInput { x, weight, bias: None })?)
                });
            }
        }
    }
    Ok(())
}
