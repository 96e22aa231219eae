//! Columns sorted by cluster.

use anyhow::Result;
use briquette::ops::Ops;
use burn::tensor::{Distribution, Int, Tensor};

use crate::bench::{Bench, Case, indices_differ};

/// The table of an EMS cache: tokens and entries of 128 heads, and of one layer of long budgets.
const SIZES: [(&str, usize, usize, usize); 2] =
    [("group/1024", 128, 1024, 256), ("group/16384", 8, 16_384, 4096)];

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    for (row, heads, columns, clusters) in SIZES {
        if bench.wants(row) {
            let heads = bench.size(heads, 3);
            one(bench, row, [1, heads, bench.size(columns, 70)], bench.size(clusters, 17))?;
        }
    }
    Ok(())
}

fn one(bench: &mut Bench, row: &'static str, dims: [usize; 3], clusters: usize) -> Result<()> {
    let [_, heads, columns] = dims;
    // A quarter of the columns hold nothing.
    let wide = Distribution::Uniform(-(clusters as f64) / 3.0, clusters as f64);
    let drawn = Tensor::<3>::random(dims, wide, &bench.device).floor();
    let drawn: Tensor<3, Int> = drawn.clamp(-1.0, clusters as f64 - 1.0).int();
    let case = Case {
        row,
        shape: format!("{clusters} clusters of {columns}, {heads} rows"),
        // Classes, order and members, of 32 bits.
        bytes: (3 * heads * columns * 4) as f64,
        operations: 0.0,
    };
    let group =
        |ops: &dyn Ops| anyhow::Ok(ops.sort_by_cluster(drawn.clone(), clusters)?.tokens_by_cluster);
    bench.run_both(&case, 1, |ops, _| group(ops), indices_differ);
    Ok(())
}
