//! The kept rows of keys and values.

use anyhow::Result;
use briquette::ops::{Ops, Reference, Selection, best};
use burn::tensor::Tensor;

use crate::{
    bench::{Bench, Case, Variant, difference},
    measure::keep,
};

const HEADS: usize = 8;
const HEAD_DIM: usize = 128;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let entries = bench.size(32_768, 512);
    for (row, kept) in [("compact/256", 256), ("compact/1024", 1024), ("compact/8192", 8192)] {
        if bench.wants(row) {
            one(bench, row, entries, kept.min(entries / 2));
        }
    }
    Ok(())
}

/// Keys and values, as two calls; the positions and scores of entries come on top in a policy.
fn one(bench: &mut Bench, row: &'static str, entries: usize, kept: usize) {
    let sets = bench.sets((2 * HEADS * entries * HEAD_DIM) as f64 * bench.number());
    let shape = [1, HEADS, entries, HEAD_DIM];
    let inputs: Vec<[Tensor<4>; 2]> =
        (0..sets).map(|_| [(); 2].map(|()| bench.noise(shape, bench.dtype))).collect();
    // Evenly spread, each head shifted by one.
    let step = entries / kept;
    let lists: Vec<Vec<usize>> =
        (0..HEADS).map(|head| (0..kept).map(|i| i * step + head % step).collect()).collect();
    let selection = Selection::of_heads(&lists, HEADS, &bench.device);
    let case = Case {
        row,
        shape: format!("{kept} of {entries} rows, keys and values, {HEADS} heads × {HEAD_DIM}"),
        bytes: (4 * HEADS * kept * HEAD_DIM) as f64 * bench.number() + (HEADS * kept * 4) as f64,
        operations: 0.0,
    };
    let compact = |ops: &dyn Ops, set: usize| {
        inputs[set].clone().map(|tensor| ops.compact(tensor, &selection))
    };
    let both = |[keys, values]: [Tensor<4>; 2]| Tensor::cat(vec![keys, values], 0);
    let ops = best();
    if bench.variants.contains(&Variant::Briquette) {
        let check = || difference(both(compact(ops.as_ref(), 0)), both(compact(&Reference, 0)));
        bench.run(&case, "briquette", sets, Some(&check), &|set| keep(compact(ops.as_ref(), set)));
    }
    if bench.variants.contains(&Variant::Reference) {
        bench.run(&case, "reference", sets, None, &|set| keep(compact(&Reference, set)));
    }
    if bench.variants.contains(&Variant::Burn) {
        let indices = selection.indices.clone().unsqueeze_dim::<4>(3).repeat_dim(3, HEAD_DIM);
        let gather =
            |set: usize| inputs[set].clone().map(|tensor| tensor.gather(2, indices.clone()));
        let check = || difference(both(gather(0)), both(compact(&Reference, 0)));
        bench.run(&case, "burn", sets, Some(&check), &|set| keep(gather(set)));
    }
}
