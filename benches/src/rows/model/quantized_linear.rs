//! Products with quantized weights: those of gate and up of Llama 3 8B. One row more than the
//! kernel takes shows what weights cost that are expanded for every product.

use anyhow::Result;
use briquette::ops::{
    LinearInput, ModelOps, QuantizedLinearInput, QuantizedMatrix, Reference, WeightFormat,
};

use crate::{
    bench::{Bench, Case, Variant},
    measure::keep,
    model::Dimensions,
};

const ROWS: [(usize, WeightFormat, &str); 8] = [
    (1, WeightFormat::Q8_0, "quantized-linear/1/q8_0"),
    (8, WeightFormat::Q8_0, "quantized-linear/8/q8_0"),
    (32, WeightFormat::Q8_0, "quantized-linear/32/q8_0"),
    (33, WeightFormat::Q8_0, "quantized-linear/33/q8_0"),
    (1, WeightFormat::Q4_0, "quantized-linear/1/q4_0"),
    (8, WeightFormat::Q4_0, "quantized-linear/8/q4_0"),
    (32, WeightFormat::Q4_0, "quantized-linear/32/q4_0"),
    (33, WeightFormat::Q4_0, "quantized-linear/33/q4_0"),
];

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let of = if bench.quick { Dimensions::TINY } else { Dimensions::LLAMA_3_8B };
    let (inputs, outputs) = (of.hidden, 2 * of.inner);
    for format in [WeightFormat::Q8_0, WeightFormat::Q4_0] {
        let wanted = ROWS.iter().filter(|(_, own, row)| *own == format && bench.wants(row));
        let wanted: Vec<_> = wanted.collect();
        if wanted.is_empty() {
            continue;
        }
        // Any numbers do, as long as they differ.
        let weights: Vec<f32> = (0..inputs * outputs)
            .map(|place| (place as u32).wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - 0.5)
            .collect();
        let weight = QuantizedMatrix::quantize(format, [outputs, inputs], &weights, &bench.device)?;
        let whole = weight.dequantize().cast(bench.dtype).transpose();
        for &(rows, _, row) in wanted {
            let x = bench.noise([rows, inputs], bench.dtype);
            let case = Case {
                row,
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
