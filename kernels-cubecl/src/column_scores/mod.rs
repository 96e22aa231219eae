mod extension;
mod launch;
mod mma;
mod tiled;

use burn::{
    backend::Dispatch,
    tensor::{Shape, Tensor},
};

use self::extension::ColumnScoresBackend;
use crate::{Result, Visibility, attention::check_heads, check::Check};

/// What [`column_scores`] works on. The queries belong to the last of the entries.
#[derive(Clone, Debug)]
pub struct ColumnScores {
    /// Queries, positions encoded, `[batch, query_heads, new, head_dim]`.
    pub queries: Tensor<4>,
    /// Keys, positions encoded, `[batch, kv_heads, entries, head_dim]`.
    pub keys: Tensor<4>,
    /// What [`attention`](crate::attention()) gave for them, `[batch, query_heads, new]`, f32.
    pub log_sum_exp: Tensor<3>,
    /// Who sees what.
    pub visibility: Visibility,
    /// What query-key products are multiplied by.
    pub scale: f64,
    /// The sums over so many of the last queries are wanted, too.
    pub local: usize,
    /// Whether the sums of squares are wanted.
    pub squares: bool,
}

/// What [`column_scores`] returns: sums of the weights of each entry over the queries, f32.
#[derive(Clone, Debug)]
pub struct ColumnScoresOutput {
    /// Over all queries, `[batch, query_heads, entries]`.
    pub sums: Tensor<3>,
    /// Over the last of them, if they are wanted.
    pub local_sums: Option<Tensor<3>>,
    /// Of their squares over all queries, if they are wanted.
    pub squares: Option<Tensor<3>>,
}

/// How much attention each entry got: Σ over queries of softmax(QKᵀ), without the matrix (H2O, TOVA, D2O, EMS; its
/// Appendix A asks for it). The log-sum-exp of the queries, which attention knows anyway, turns each score into its
/// weight by itself, so a column can be added up by one cube, in order, without atomics: results are the same in
/// every run.
///
/// Where the device multiplies tiles of 16-bit numbers and head_dim is a multiple of 16 up to 128, a plane keeps 32
/// keys in registers as the left operand, and queries pass through shared memory 32 at a time; products are exact in
/// f32. Elsewhere, and for f32, a cube of 128 units multiplies 32 × 32 tiles in f32.
///
/// Causally it does batch · query_heads · new · (2 · entries − new) · head_dim operations, half of what attention
/// does, and one exponential a weight; it writes 4 bytes an entry and query head for each sum wanted.
///
/// # Errors
/// [`KernelError`](crate::KernelError) if shapes or types do not fit, there is nothing to add up, or the device has no
/// kernels or cannot launch so much.
pub fn column_scores(input: ColumnScores) -> Result<ColumnScoresOutput> {
    input.check()?;
    let ColumnScores { queries, keys, log_sum_exp, visibility, scale, local, squares } = input;
    let [queries, keys] = [queries, keys].map(Tensor::into_dispatch);
    let log_sum_exp = log_sum_exp.into_dispatch();
    let scale = scale as f32;
    let (sums, local_sums, squared) = match visibility {
        Visibility::Causal => {
            Dispatch::column_scores_causal(queries, keys, log_sum_exp, scale, local, squares)
        }
        Visibility::Positions { queries: of_queries, entries } => {
            Dispatch::column_scores_by_position(
                queries,
                keys,
                log_sum_exp,
                of_queries.into_dispatch(),
                entries.into_dispatch(),
                scale,
                local,
                squares,
            )
        }
    };
    Ok(ColumnScoresOutput {
        sums: Tensor::from_dispatch(sums),
        local_sums: (local > 0).then(|| Tensor::from_dispatch(local_sums)),
        squares: squares.then(|| Tensor::from_dispatch(squared)),
    })
}

impl ColumnScores {
    fn check(&self) -> Result<()> {
        let check = Check::new("column_scores", &self.queries.device())?;
        check_heads(&check, &self.queries, &self.keys, &self.visibility)?;
        let [batch, heads, new, _] = self.queries.dims();
        check.shape("log_sum_exp", self.log_sum_exp.dims(), [batch, heads, new])?;
        check.value(
            "local",
            self.local,
            self.local <= new,
            format!("at most {new}, the queries"),
        )?;
        let entries = self.keys.dims()[2];
        check.countable("the sums", &[batch, heads, entries])?;
        check.tensors(8)?;
        // The most cubes of either way to launch.
        let blocks = entries.div_ceil(launch::FEWEST_KEYS);
        check.cubes([blocks.max(heads), blocks.max(heads), batch])
    }
}

/// The shapes of all sums, local sums and sums of squares; one number for those not wanted.
fn output_shapes(queries: &Shape, keys: &Shape, local: usize, squares: bool) -> [Shape; 3] {
    let all = Shape::from([queries[0], queries[1], keys[2]]);
    let none = Shape::from([1, 1, 1]);
    let if_wanted = |wanted: bool| if wanted { all.clone() } else { none.clone() };
    [all.clone(), if_wanted(local > 0), if_wanted(squares)]
}
