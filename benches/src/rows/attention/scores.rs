//! Scores of entries: columns summed over every query, or over the last few.

use anyhow::{Result, anyhow};
use briquette::ops::{Ops, Reference, Visibility};
use briquette_ops::{AttentionInput, MomentsInput, Scoring, WindowInput};
use burn::tensor::{Tensor, activation::softmax, module::avg_pool1d, ops::AvgPoolOptions};

use super::{HEAD_DIM, causal};
use crate::{
    bench::{Bench, Case, Variant, difference},
    measure::keep,
};

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    if bench.wants("column-scores/with-attention") {
        columns(bench);
    }
    if bench.wants("window-scores") {
        window(bench);
    }
    Ok(())
}

/// Attention with column sums, and what the sums cost on top.
fn columns(bench: &mut Bench) {
    let (heads, tokens) = (bench.size(32, 2), bench.size(4096, 64));
    let shape = [1, heads, tokens, HEAD_DIM];
    let [q, k, v] = [(); 3].map(|()| bench.noise(shape, bench.dtype));
    let pairs = heads as f64 * (tokens * tokens) as f64 / 2.0;
    let of = |row, products: f64, tensors: f64| Case {
        row,
        shape: format!("1×{heads}×{tokens}×{HEAD_DIM}, causal"),
        bytes: tensors * (heads * tokens * HEAD_DIM) as f64 * bench.number()
            + (heads * tokens * 4) as f64,
        operations: products * 2.0 * pairs * HEAD_DIM as f64,
    };
    // From the log-sum-exp that attention leaves: the product once more.
    let on_top = of("column-scores", 1.0, 2.0);
    // Attention, and the product of queries and keys once more.
    let with_attention = of("column-scores/with-attention", 3.0, 4.0);
    let attention = |ops: &dyn Ops, column_sums| {
        let input = causal([&q, &k, &v].map(Tensor::clone));
        anyhow::Ok(ops.attention(AttentionInput { column_sums, ..input })?)
    };
    let attend = |ops: &dyn Ops| attention(ops, true);
    let sums = |ops: &dyn Ops| {
        attend(ops)?.column_sums.ok_or_else(|| anyhow!("column sums were asked for and are absent"))
    };
    let ops = bench.ops.clone();
    if bench.variants.contains(&Variant::Briquette) {
        let check = || difference(sums(ops.as_ref())?, sums(&Reference)?);
        bench.run(&with_attention, "briquette", 1, Some(&check), &|_| {
            let found = attend(ops.as_ref())?;
            keep((found.output, found.column_sums))
        });
        let both = |column_sums| {
            let found = attention(ops.as_ref(), column_sums)?;
            keep((found.output, found.column_sums))
        };
        let check: Option<&dyn Fn() -> Result<_>> = Some(&check);
        bench.run_difference(&on_top, "briquette", check, &|_| both(true), &|_| both(false));
    }
    if bench.variants.contains(&Variant::Reference) {
        bench.run(&with_attention, "reference", 1, None, &|_| keep(sums(&Reference)?));
    }
    if bench.variants.contains(&Variant::Burn) {
        // Three steps, no mask: what a user of Burn would write first.
        let steps = || {
            let scale = (HEAD_DIM as f64).powf(-0.5);
            let scores = q.clone().matmul(k.clone().swap_dims(2, 3)) * scale;
            softmax(scores, 3).sum_dim(2)
        };
        bench.run(&on_top, "burn", 1, None, &|_| keep(steps()));
    }
}

/// The last 32 queries over all entries: softmax, the sum over queries, pooled over 5 entries, the
/// mean over the query heads of a kv head.
fn window(bench: &mut Bench) {
    let (heads, kv_heads) = (bench.size(32, 4), bench.size(8, 2));
    let (window, entries) = (bench.size(32, 8), bench.size(32_768, 256));
    let sets = bench.sets((kv_heads * entries * HEAD_DIM) as f64 * bench.number());
    let q = bench.noise([1, heads, window, HEAD_DIM], bench.dtype);
    let keys: Vec<Tensor<4>> =
        (0..sets).map(|_| bench.noise([1, kv_heads, entries, HEAD_DIM], bench.dtype)).collect();
    let case = Case {
        row: "window-scores",
        shape: format!(
            "{window} queries, {heads}/{kv_heads} heads × {HEAD_DIM}, {entries} entries"
        ),
        bytes: ((kv_heads * entries + heads * window) * HEAD_DIM) as f64 * bench.number()
            + (kv_heads * entries * 4) as f64,
        operations: 2.0 * (heads * window * entries * HEAD_DIM) as f64,
    };
    let score = |ops: &dyn Ops, set: usize| {
        let moments = ops.window_moments(MomentsInput {
            window: WindowInput {
                queries: q.clone(),
                keys: keys[set].clone(),
                visibility: Visibility::Causal,
                scoring: Scoring::plain((HEAD_DIM as f64).powf(-0.5)),
            },
            own: vec![window],
            deviations: false,
            entropies: false,
        })?;
        let pool = AvgPoolOptions { stride: [1], padding: [(2, 2)], ..AvgPoolOptions::new([5]) };
        let pooled = avg_pool1d(moments.sums, pool);
        anyhow::Ok(pooled.reshape([1, kv_heads, heads / kv_heads, entries]).mean_dim(2))
    };
    bench.run_both(&case, sets, score, difference);
}
