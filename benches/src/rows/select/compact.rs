//! The kept entries: keys, values and positions.

use anyhow::Result;
use briquette::ops::{AttentionStatistics, Entries, Ops, Reference, Selection};
use burn::tensor::{Int, Tensor};

use crate::{
    bench::{Bench, Case, Variant, difference, indices_differ},
    measure::keep,
};

const HEADS: usize = 8;
const HEAD_DIM: usize = 128;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let entries = bench.size(32_768, 512);
    for (row, kept) in [("compact/256", 256), ("compact/1024", 1024), ("compact/8192", 8192)] {
        if bench.wants(row) {
            one(bench, row, entries, kept.min(entries / 2))?;
        }
    }
    Ok(())
}

fn one(bench: &mut Bench, row: &'static str, entries: usize, kept: usize) -> Result<()> {
    let sets = bench.sets((2 * HEADS * entries * HEAD_DIM) as f64 * bench.number());
    let inputs: Vec<Entries> = (0..sets).map(|_| random_entries(bench, entries)).collect();
    // Evenly spread, each head shifted by one.
    let step = entries / kept;
    let lists: Vec<Vec<usize>> =
        (0..HEADS).map(|head| (0..kept).map(|i| i * step + head % step).collect()).collect();
    let selection = Selection::of_heads(&lists, HEADS, &bench.device);
    let case = Case {
        row,
        shape: format!(
            "{kept} of {entries} entries, keys, values and positions, {HEADS} heads × {HEAD_DIM}"
        ),
        // An index read, a position read and written, each of 32 bits.
        bytes: (4 * HEADS * kept * HEAD_DIM) as f64 * bench.number() + (HEADS * kept * 12) as f64,
        operations: 0.0,
    };
    let compact =
        |ops: &dyn Ops, set: usize| anyhow::Ok(ops.compact(inputs[set].clone(), &selection)?);
    bench.run_both(&case, sets, compact, |found, expected| {
        let (moved, _) = indices_differ(found.positions, expected.positions)?;
        let both = |keys, values| Tensor::cat(vec![keys, values], 0);
        let (off, of) =
            difference(both(found.keys, found.values), both(expected.keys, expected.values))?;
        Ok((off + moved, of))
    });
    if bench.variants.contains(&Variant::Burn) {
        let indices = selection.indices.clone().unsqueeze_dim::<4>(3).repeat_dim(3, HEAD_DIM);
        let gather = |set: usize| {
            let Entries { keys, values, .. } = inputs[set].clone();
            [keys, values].map(|tensor| tensor.gather(2, indices.clone()))
        };
        let check = || {
            let [keys, _] = gather(0);
            difference(keys, compact(&Reference, 0)?.keys)
        };
        bench.run(&case, "burn", sets, Some(&check), &|set| keep(gather(set)));
    }
    Ok(())
}

/// Entries of noise.
fn random_entries(bench: &Bench, count: usize) -> Entries {
    let noise = || bench.noise([1, HEADS, count, HEAD_DIM], bench.dtype);
    let positions = Tensor::<1, Int>::arange(0..count as i64, &bench.device);
    Entries {
        keys: noise(),
        values: noise(),
        positions: positions.reshape([1, 1, count]).repeat(&[1, HEADS, 1]),
        statistics: AttentionStatistics::default(),
        clustering: None,
    }
}
