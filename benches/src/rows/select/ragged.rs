//! The decode step's work on heads of different lengths: their lists are padded to a rectangle with
//! the new token, and packed again. D2O's merging stands here, too.

use anyhow::Result;
use briquette_ops::{EmaInput, PackInput, PadInput, Tail};
use burn::tensor::{DType, Int, Tensor, TensorData};

use crate::{
    bench::{Bench, Case},
    rows::cluster::tokens::one,
};

const HEAD_DIM: usize = 128;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let rows = ["lay-out/step", "pack/step", "ema-weights/step"];
    if !rows.iter().any(|row| bench.wants(row)) {
        return Ok(());
    }
    let (batch, heads) = (bench.size(16, 2), bench.size(8, 2));
    let width = bench.size(288, 36);
    let lists = batch * heads;
    // From two thirds of the width to all of it.
    let counts: Vec<usize> = (0..lists).map(|list| width - list % 8 * width / 24).collect();
    let mut offsets = vec![0_i64];
    counts.iter().for_each(|&count| offsets.push(offsets[offsets.len() - 1] + count as i64));
    let total: usize = counts.iter().sum();
    let offsets = TensorData::new(offsets, [lists + 1]);
    let offsets = Tensor::<1, Int>::from_data(offsets, &bench.device);
    let list = || bench.noise([total, HEAD_DIM], bench.dtype);
    let tail = || bench.noise([batch, heads, 16, HEAD_DIM], bench.dtype);
    let input = PadInput {
        keys: list(),
        values: list(),
        offsets: Some(offsets.clone()),
        width,
        tail: Tail { keys: tail(), values: tail(), entries: 1 },
    };
    let row = HEAD_DIM as f64 * bench.number();
    let case = |row, rows: f64| Case {
        row,
        shape: format!("{lists} heads of {} to {width} rows of {HEAD_DIM}", counts[7 % lists]),
        bytes: rows,
        operations: 0.0,
    };
    // Keys and values, read and written.
    let moved = 4.0 * (total + lists) as f64 * row;
    one(bench, case("lay-out/step", moved), |ops| Ok(ops.pad(input.clone())?.to_vec()));
    let rectangle = || bench.noise([batch, heads, width + 1, HEAD_DIM], bench.dtype);
    let (keys, values) = (rectangle(), rectangle());
    one(bench, case("pack/step", 4.0 * total as f64 * row), |ops| {
        let (keys, values) = (keys.clone(), values.clone());
        let offsets = offsets.clone();
        Ok(ops.pack(PackInput { keys, values, counts: &counts, offsets })?.to_vec())
    });

    let case = Case {
        row: "ema-weights/step",
        shape: format!("{lists} heads of {width}"),
        bytes: 4.0 * (lists * 3 * width) as f64,
        operations: 0.0,
    };
    let similarity = bench.noise([batch, heads, width, 1], DType::F32).tanh().squeeze_dim::<3>(3);
    let limit = Tensor::<2>::full([batch, 1], 0.5, (&bench.device, DType::F32));
    let all = vec![width; lists];
    one(bench, case, |ops| {
        let found = ops.ema_weights(EmaInput {
            similarity: similarity.clone(),
            counts: &all,
            before: Some(limit.clone()),
            beta: 0.7,
        })?;
        Ok(vec![found.weights])
    });
    Ok(())
}
