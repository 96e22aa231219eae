mod backend;
mod mma;
mod pattern;
mod portable;
#[cfg(cubecl_0_12)]
mod wgmma;

use briquette_ops::{AttentionInput, Result, Visibility};
use burn::{backend::Dispatch, tensor::Tensor};

pub(crate) use self::backend::{AttentionBackend, FEWEST_QUERIES, Tiles};
use crate::common::check::Check;

/// Attention of a prompt, and the log-sum-exp that turns its scores into weights.
#[derive(Clone, Debug)]
pub struct PromptAttention {
    /// `[batch, query_heads, new, head_dim]`, of the type of the queries; zero where the query is
    /// padding.
    pub output: Tensor<4>,
    /// The logarithm of the sum of the exponentials of each query's scores, a sink among them,
    /// `[batch, query_heads, new]`, f32: what [`column_scores`](crate::column_scores()) needs to
    /// tell weights from scores. 1e30 where the query is padding, or nothing is in its window.
    pub log_sum_exp: Tensor<3>,
}

/// Attention of many queries over the keys they see, without the matrix of weights
/// (FlashAttention-2, Dao 2023): the exact softmax, block of keys by block of keys, with a running
/// maximum and sum per query. Query heads of a group read the keys of their kv head where they lie.
///
/// Where the device multiplies tiles of 16-bit numbers (16 × 8 × 16, sums in f32) and head_dim is a
/// multiple of 16 up to 128, a cube of 4 planes has 128 queries, 32 per plane; the sums of their
/// outputs stay in registers, keys and values pass through shared memory 32 at a time, the next 32
/// on their way while these are multiplied. Weights are rounded to the type of the values for the
/// second product. Elsewhere, and for f32, a cube of 128 units has 32 queries and multiplies 32 ×
/// 32 tiles in f32.
///
/// On CubeCL 0.12 (`next/burn-0.23.patch`) and Hopper, a call with head_dim 64 or 128 and plain
/// scoring is computed by two groups of 128 units with 64 queries each, 128 keys at a time; keys
/// and values are multiplied from shared memory, where the tensor memory accelerator lays them, and
/// weights from registers.
///
/// Causally it does 2 · batch · query_heads · new · (2 · entries − new) · head_dim operations (half
/// of a square for a prompt), reads queries once and the keys and values of a head once for every
/// cube of its queries, mostly from the cache of the device, and writes the output and 4 bytes per
/// query. By position it looks at every key. Within a window it skips the keys before those of the
/// cube's first query, unless it goes by position.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, there is nothing to attend
/// to, or the device has no kernels or cannot launch so much.
pub fn attention(input: &AttentionInput) -> Result<PromptAttention> {
    check(input)?;
    let AttentionInput { queries, keys, values, visibility, scoring, .. } = input.clone();
    let [queries, keys, values] = [queries, keys, values].map(Tensor::into_dispatch);
    let (output, log_sum_exp) = Dispatch::prompt_attention(
        queries,
        keys,
        values,
        visibility.into(),
        Tiles::All,
        scoring.into(),
    );
    Ok(PromptAttention {
        output: Tensor::from_dispatch(output),
        log_sum_exp: Tensor::from_dispatch(log_sum_exp),
    })
}

fn check(input: &AttentionInput) -> Result<()> {
    let check = Check::new("attention", &input.queries.device())?;
    check_heads(&check, &input.queries, &input.keys, &input.visibility)?;
    check.values("values", input.values.dims(), input.keys.dims())?;
    check.same_type("values", input.values.dtype(), input.keys.dtype())?;
    let [batch, heads, new, _] = input.queries.dims();
    let of_heads = check.scoring(&input.scoring, heads)?;
    check.tensors(7 + of_heads)?;
    // The most cubes of either way to launch.
    let blocks = new.div_ceil(FEWEST_QUERIES);
    check.cubes([blocks.max(heads), blocks.max(heads), batch])
}

/// Checks queries, keys and positions for [`attention`] and
/// [`column_scores`](crate::column_scores()).
pub(crate) fn check_heads(
    check: &Check,
    queries: &Tensor<4>,
    keys: &Tensor<4>,
    visibility: &Visibility,
) -> Result<()> {
    let [batch, query_heads, new, head_dim] = queries.dims();
    let [_, kv_heads, entries, _] = keys.dims();
    check.shape("keys", keys.dims(), [batch, kv_heads, entries, head_dim])?;
    let grouped = kv_heads > 0 && query_heads.is_multiple_of(kv_heads);
    check.value("query_heads", query_heads, grouped, format!("a multiple of {kv_heads}"))?;
    for (what, size) in [("batch", batch), ("query_heads", query_heads), ("head_dim", head_dim)] {
        check.value(what, size, size > 0, "at least 1")?;
    }
    let among = (1..=entries).contains(&new);
    check.value("the number of queries", new, among, format!("1 to {entries}, the entries"))?;
    check.countable("queries", &queries.dims())?;
    check.countable("keys", &keys.dims())?;
    if let Visibility::Positions { queries, entries: of_entries } = visibility {
        check.shape("the queries' positions", queries.dims(), [batch, 1, new])?;
        check.shape("the entries' positions", of_entries.dims(), [batch, kv_heads, entries])?;
        check.same_type("the entries' positions", of_entries.dtype(), queries.dtype())?;
    }
    Ok(())
}
