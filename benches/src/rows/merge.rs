//! Who is merged with whom, and the merging.

use anyhow::Result;
use briquette::ops::{AccumulateInput, NearestInput, Ops, Reference, best};
use burn::tensor::{DType, Distribution, Tensor};

use crate::{
    bench::{Bench, Case, Variant, difference},
    measure::keep,
};

const HEADS: usize = 8;
const HEAD_DIM: usize = 128;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    // EMS at 256 entries, γ = 4: 768 tokens go to 224 centers, by keys and by values.
    let [from, to] = [bench.size(768, 48), bench.size(224, 16)];
    nearest(bench, "nearest/ems", from, to, 2);
    // D2O at an eighth of 32 768 tokens.
    let [from, to] = [bench.size(28_672, 96), bench.size(4096, 32)];
    nearest(bench, "nearest/d2o", from, to, 1);
    accumulate(bench, "accumulate/d2o", from, to);
    Ok(())
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
    let find = |ops: &dyn Ops| {
        ops.nearest(NearestInput { pairs: tensors.clone(), fillers: vec![0; HEADS] })
    };
    let ops = best();
    if bench.variants.contains(&Variant::Briquette) {
        // Of nearly equal neighbours either may win in another order of summing: similarities are compared.
        let check = || difference(find(ops.as_ref()).similarity, find(&Reference).similarity);
        bench.run(&case, "briquette", 1, Some(&check), &|_| {
            let found = find(ops.as_ref());
            keep((found.similarity, found.index))
        });
    }
    if bench.variants.contains(&Variant::Reference) {
        bench.run(&case, "reference", 1, None, &|_| {
            let found = find(&Reference);
            keep((found.similarity, found.index))
        });
    }
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
        ops.accumulate(AccumulateInput {
            x: x.clone(),
            weights: weights.clone(),
            slot: slot.clone(),
            span: 1,
            slots,
        })
    };
    let ops = best();
    if bench.variants.contains(&Variant::Briquette) {
        let check = || difference(add(ops.as_ref()), add(&Reference));
        bench.run(&case, "briquette", 1, Some(&check), &|_| keep(add(ops.as_ref())));
    }
    if bench.variants.contains(&Variant::Reference) {
        bench.run(&case, "reference", 1, None, &|_| keep(add(&Reference)));
    }
    if bench.variants.contains(&Variant::Burn) {
        let slots_of = slot.clone().unsqueeze_dim::<4>(3).repeat_dim(3, HEAD_DIM);
        let empty = || Tensor::zeros([1, HEADS, slots, HEAD_DIM], (&bench.device, DType::F32));
        let empty: Tensor<4> = empty();
        let scatter = || {
            let rows = x.clone().cast(DType::F32) * weights.clone().unsqueeze_dim::<4>(3);
            let add = burn::tensor::IndexingUpdateOp::Add;
            empty.clone().scatter(2, slots_of.clone(), rows, add)
        };
        let check = || difference(scatter(), add(&Reference));
        bench.run(&case, "burn", 1, Some(&check), &|_| keep(scatter()));
    }
}
