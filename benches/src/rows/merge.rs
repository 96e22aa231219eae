//! Who is merged with whom, and the merging.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use briquette::ops::{MergeInput, NearestInput, Ops, Reference};
use briquette_ops::AccumulateInput;
use burn::tensor::{DType, Distribution, Tensor};

use crate::{
    bench::{Bench, Case, Variant, difference},
    measure::keep,
};

const HEADS: usize = 8;
const HEAD_DIM: usize = 128;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    // EMS at 256 entries, γ = 4: 768 tokens go to 224 representatives, by keys and by values.
    let [from, to] = [bench.size(768, 48), bench.size(224, 16)];
    nearest(bench, "nearest/ems", from, to, 2);
    // D2O at an eighth of 32 768 tokens.
    let [from, to] = [bench.size(28_672, 96), bench.size(4096, 32)];
    nearest(bench, "nearest/d2o", from, to, 1);
    accumulate(bench, "accumulate/d2o", from, to);
    // A decode step of EMS: one entry goes to one of 256, in 128 heads; and what a prompt leaves it
    // to merge.
    let [heads, few, to] = [bench.size(128, 3), 1, bench.size(256, 16)];
    merge(bench, "merge/step", heads, few, to);
    merge(bench, "merge/prompt", HEADS, bench.size(768, 48), to);
    Ok(())
}

/// Keys as directions, values as they are; in place, each call goes on where the last has ended.
fn merge(bench: &mut Bench, row: &'static str, heads: usize, others: usize, rows: usize) {
    if !bench.wants(row) {
        return;
    }
    let noise = |rows| bench.noise([1, heads, rows, HEAD_DIM], bench.dtype);
    let of_set = (2 * heads * (2 * rows + others) * HEAD_DIM) as f64 * bench.number();
    let inputs: Vec<MergeInput> = (0..bench.sets(of_set))
        .map(|_| {
            let uniform = |number, high: f64| {
                let range = Distribution::Uniform(0.0, high);
                Tensor::<3>::random([1, heads, number], range, (&bench.device, DType::F32))
            };
            MergeInput {
                keys: noise(rows),
                values: noise(rows),
                own: uniform(rows, 1.0),
                other_keys: noise(others),
                other_values: noise(others),
                weights: uniform(others, 1.0),
                slot: uniform(others, rows as f64).int().clamp(0, rows as i64 - 1),
                directions: true,
            }
        })
        .collect();
    let case = Case {
        row,
        shape: format!("{others} into {rows} rows, {heads} heads × {HEAD_DIM}"),
        // Directions are read and written, and of the rows only those that others go to.
        bytes: (heads * (2 * rows + 6 * others.min(rows)) * HEAD_DIM) as f64 * bench.number()
            + (heads * (rows * 4 + others * 8)) as f64,
        operations: 0.0,
    };
    let of = |ops: &dyn Ops, set: usize| anyhow::Ok(ops.merge(inputs[set].clone())?);
    let owned: Vec<_> =
        inputs.iter().map(|_| Mutex::new(Some((noise(rows), noise(rows))))).collect();
    let in_place = |ops: &dyn Ops, set: usize| {
        let mut owned = owned[set].lock().unwrap_or_else(PoisonError::into_inner);
        let (keys, values) = owned.take().context("a call has failed")?;
        *owned = Some(ops.merge(MergeInput { keys, values, ..inputs[set].clone() })?);
        keep(())
    };
    let ops = bench.ops.clone();
    if bench.variants.contains(&Variant::Briquette) {
        let check = || difference(of(ops.as_ref(), 0)?.1, of(&Reference, 0)?.1);
        bench.run(&case, "briquette", inputs.len(), Some(&check), &|set| {
            in_place(ops.as_ref(), set)
        });
    }
    if bench.variants.contains(&Variant::Reference) {
        bench.run(&case, "reference", inputs.len(), None, &|set| in_place(&Reference, set));
    }
}

fn nearest(bench: &mut Bench, row: &'static str, from: usize, to: usize, pairs: usize) {
    if !bench.wants(row) {
        return;
    }
    let tensors: Vec<(Tensor<4>, Tensor<4>)> = (0..pairs)
        .map(|_| {
            let noise = |rows| bench.noise([1, HEADS, rows, HEAD_DIM], bench.dtype);
            (noise(from), noise(to))
        })
        .collect();
    let case = Case {
        row,
        shape: format!("{from} to {to} rows, {pairs} pairs, {HEADS} heads × {HEAD_DIM}"),
        bytes: (pairs * HEADS * (from + to) * HEAD_DIM) as f64 * bench.number()
            + (HEADS * from * 8) as f64,
        operations: 2.0 * (pairs * HEADS * from * HEAD_DIM) as f64 * to as f64,
    };
    let find = |ops: &dyn Ops, _: usize| {
        let input = NearestInput { pairs: tensors.clone(), padding: vec![0; HEADS] };
        anyhow::Ok(ops.nearest(input)?)
    };
    // Of nearly equal neighbours either may win in another order of summing: similarities are
    // compared.
    bench.run_both(&case, 1, find, |found, expected| {
        difference(found.similarity, expected.similarity)
    });
}

fn accumulate(bench: &mut Bench, row: &'static str, rows: usize, slots: usize) {
    if !bench.wants(row) {
        return;
    }
    let x = bench.noise([1, HEADS, rows, HEAD_DIM], bench.dtype);
    let uniform = |high: f64| {
        let range = Distribution::Uniform(0.0, high);
        Tensor::<3>::random([1, HEADS, rows], range, (&bench.device, DType::F32))
    };
    let weights = uniform(1.0);
    let slot = uniform(slots as f64).int().clamp(0, slots as i64 - 1);
    let case = Case {
        row,
        shape: format!("{rows} rows to {slots} slots, {HEADS} heads × {HEAD_DIM}"),
        bytes: (HEADS * rows * HEAD_DIM) as f64 * bench.number()
            + (HEADS * (rows * 8 + slots * HEAD_DIM * 4)) as f64,
        operations: 0.0,
    };
    let add = |ops: &dyn Ops| {
        let (x, weights, slot) = (x.clone(), weights.clone(), slot.clone());
        anyhow::Ok(ops.accumulate(AccumulateInput { x, weights, slot, span: 1, slots })?)
    };
    bench.run_both(&case, 1, |ops, _| add(ops), difference);
    if bench.variants.contains(&Variant::Burn) {
        let slots_of = slot.clone().unsqueeze_dim::<4>(3).repeat_dim(3, HEAD_DIM);
        let empty = || Tensor::zeros([1, HEADS, slots, HEAD_DIM], (&bench.device, DType::F32));
        let empty: Tensor<4> = empty();
        let scatter = || {
            let rows = x.clone().cast(DType::F32) * weights.clone().unsqueeze_dim::<4>(3);
            let add = burn::tensor::IndexingUpdateOp::Add;
            empty.clone().scatter(2, slots_of.clone(), rows, add)
        };
        let check = || difference(scatter(), add(&Reference)?);
        bench.run(&case, "burn", 1, Some(&check), &|_| keep(scatter()));
    }
}
