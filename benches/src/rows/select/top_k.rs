//! The best entries of each row.

use anyhow::Result;
use briquette::ops::{Ops, Reference, SelectInput};
use burn::tensor::{DType, Tensor};

use crate::{
    bench::{Bench, Case, Variant, indices_differ},
    measure::keep,
};

const ROWS: usize = 8;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let long = bench.size(32_768, 512);
    let longest = bench.size(1 << 20, 1024);
    for (row, entries, keep) in
        [("select/256", long, 256), ("select/1024", long, 1024), ("select/1m", longest, 1024)]
    {
        if bench.wants(row) {
            one(bench, row, entries, keep.min(entries / 2))?;
        }
    }
    Ok(())
}

fn one(bench: &mut Bench, row: &'static str, entries: usize, kept: usize) -> Result<()> {
    let scores = bench.noise([1, ROWS, entries], DType::F32);
    let case = Case {
        row,
        shape: format!("{kept} of {entries}, {ROWS} rows, f32"),
        // Indices of 32 bits.
        bytes: (ROWS * (entries + kept) * 4) as f64,
        operations: 0.0,
    };
    let [lengths, keep_of_rows, recent] = [entries, kept, 0].map(|number| vec![number; ROWS]);
    let select = |ops: &dyn Ops| {
        let selection = ops.select(SelectInput {
            scores: &scores,
            lengths: &lengths,
            keep: &keep_of_rows,
            sinks: 0,
            recent: &recent,
            check: false,
        })?;
        anyhow::Ok(selection.indices)
    };
    bench.run_both(&case, 1, |ops, _| select(ops), indices_differ);
    if bench.variants.contains(&Variant::Burn) && row != "select/1m" {
        // Burn's `topk` keeps k values in registers: at 256 it did not compile within 200 seconds.
        // Its sort reads the tensor back to the host.
        let check = || indices_differ(burn_select(&scores, kept), select(&Reference)?);
        bench.run(&case, "burn", 1, Some(&check), &|_| keep(burn_select(&scores, kept)));
    }
    Ok(())
}

fn burn_select(scores: &Tensor<3>, kept: usize) -> Tensor<3, burn::tensor::Int> {
    scores.clone().argsort_descending(2).narrow(2, 0, kept).sort(2)
}
