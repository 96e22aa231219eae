//! Queries turned to their positions.

use anyhow::Result;
use briquette::{ops::Ops, position::RotaryEmbedding};
use briquette_ops::RotaryTables;
use burn::tensor::{Int, Tensor};

use super::HEAD_DIM;
use crate::bench::{Bench, Case, difference};

/// Rows of the tables.
const CONTEXT: usize = 8192;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let heads = bench.size(32, 4);
    // A prompt, and a decode step of sixteen.
    let (prompt, batch) = (bench.size(4096, 70), bench.size(16, 2));
    one(bench, "rotate/prompt", [1, heads, prompt, HEAD_DIM])?;
    one(bench, "rotate/step", [batch, heads, 1, HEAD_DIM])
}

fn one(bench: &mut Bench, row: &'static str, dims: [usize; 4]) -> Result<()> {
    if !bench.wants(row) {
        return Ok(());
    }
    let [batch, heads, tokens, _] = dims;
    let of_set = 2.0 * dims.iter().product::<usize>() as f64 * bench.number();
    let inputs: Vec<Tensor<4>> =
        (0..bench.sets(of_set)).map(|_| bench.noise(dims, bench.dtype)).collect();
    let rope = RotaryEmbedding::new(HEAD_DIM, CONTEXT, 500_000.0, &bench.device)?;
    let (cosines, sines) = rope.tables(CONTEXT);
    let first = (CONTEXT - tokens) as i64;
    let positions = Tensor::<1, Int>::arange(first..CONTEXT as i64, &bench.device);
    let positions = positions.reshape([1, 1, tokens]).repeat(&[batch, 1, 1]);
    let case = Case {
        row,
        shape: format!("batch {batch}, {heads} heads × {HEAD_DIM}, {tokens} tokens"),
        bytes: of_set + (tokens * HEAD_DIM * 4) as f64,
        operations: 0.0,
    };
    let turn = |ops: &dyn Ops, set: usize| {
        let (cosines, sines, positions) = (cosines.clone(), sines.clone(), positions.clone());
        let tables = RotaryTables { cosines, sines, positions };
        anyhow::Ok(ops.rotate(inputs[set].clone(), tables)?)
    };
    bench.run_both(&case, inputs.len(), turn, difference);
    Ok(())
}
