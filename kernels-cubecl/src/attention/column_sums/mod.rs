mod backend;
mod mma;
mod portable;
#[cfg(cubecl_0_12)]
mod wgmma;

use briquette_ops::{AttentionInput, Result};
use burn::{backend::Dispatch, tensor::Tensor};

use self::backend::{ColumnScoresBackend, FEWEST_KEYS};
use crate::{attention::prefill::check_heads, common::check::Check};

/// Sums of the weights of each entry over the queries, f32.
#[derive(Clone, Debug)]
pub struct ColumnScoresOutput {
    /// Sums over all queries, `[batch, query_heads, entries]`.
    pub sums: Tensor<3>,
    /// Sums over the last queries, if they are wanted.
    pub local_sums: Option<Tensor<3>>,
    /// Sums of squares over all queries, if they are wanted.
    pub squares: Option<Tensor<3>>,
}

/// Attention that each entry got: Σ over queries of softmax(QKᵀ), without the matrix (H2O,
/// TOVA, D2O, EMS; its Appendix A asks for it). The log-sum-exp of the queries, which attention
/// knows anyway, turns each score into its weight by itself, so a column can be added up by one
/// cube, in order, without atomics: results are the same in every run.
///
/// Where the device multiplies tiles of 16-bit numbers and head_dim is a multiple of 16 up to 128,
/// a plane keeps 32 keys in registers as the left operand, and queries pass through shared memory
/// 32 at a time; products are exact in f32. Elsewhere, and for f32, a cube of 128 units multiplies
/// 32 × 32 tiles in f32.
///
/// On CubeCL 0.12 (`next/burn-0.23.patch`) and Hopper, a causal call with head_dim 64 or 128 and
/// plain scoring is computed by four groups of 128 units with 64 keys each, 128 queries at a time.
///
/// `log_sum_exp` is what [`attention`](crate::attention()) gave for the queries,
/// `[batch, query_heads, new]`, f32; the sums over the last `local` queries come besides those over
/// all, and sums of squares if the input wants them.
///
/// Causally it does batch · query_heads · new · (2 · entries − new) · head_dim operations, half of
/// what attention does, and one exponential per weight; it writes 4 bytes per entry and query head
/// for each sum wanted. Within a window it skips the queries behind those that see the cube's last
/// key.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, there is nothing to add up,
/// or the device has no kernels or cannot launch so much.
pub fn column_scores(
    input: &AttentionInput,
    log_sum_exp: Tensor<3>,
    local: usize,
) -> Result<ColumnScoresOutput> {
    check(input, &log_sum_exp, local)?;
    let AttentionInput { queries, keys, visibility, scoring, column_squares: squares, .. } =
        input.clone();
    let [queries, keys] = [queries, keys].map(Tensor::into_dispatch);
    let (sums, local_sums, squared) = Dispatch::column_scores(
        queries,
        keys,
        log_sum_exp.into_dispatch(),
        visibility.into(),
        scoring.into(),
        local,
        squares,
    );
    Ok(ColumnScoresOutput {
        sums: Tensor::from_dispatch(sums),
        local_sums: (local > 0).then(|| Tensor::from_dispatch(local_sums)),
        squares: squares.then(|| Tensor::from_dispatch(squared)),
    })
}

fn check(input: &AttentionInput, log_sum_exp: &Tensor<3>, local: usize) -> Result<()> {
    let check = Check::new("column_scores", &input.queries.device())?;
    check_heads(&check, &input.queries, &input.keys, &input.visibility)?;
    let [batch, heads, new, _] = input.queries.dims();
    check.shape("log_sum_exp", log_sum_exp.dims(), [batch, heads, new])?;
    check.f32("log_sum_exp", log_sum_exp.dtype())?;
    check.value("local", local, local <= new, format!("at most {new}, the queries"))?;
    let entries = input.keys.dims()[2];
    check.countable("the sums", &[batch, heads, entries])?;
    let of_heads = check.scoring(&input.scoring, heads)?;
    check.tensors(8 + of_heads)?;
    // The most cubes of either way to launch.
    let blocks = entries.div_ceil(FEWEST_KEYS);
    check.cubes([blocks.max(heads), blocks.max(heads), batch])
}
