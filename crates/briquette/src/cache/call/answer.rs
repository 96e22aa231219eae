//! What a call of a layer returns: attention, or the entries that the model attends to by itself.

use burn::tensor::{Bool, Int, Tensor};

use super::{
    attend::{asked, attend},
    input::LayerInput,
    working_set::WorkingSet,
};
use crate::{
    Error, Result,
    cache::context::Context,
    ops::{AttentionOutput, Entries, Window, expand_clusters, seen_entries},
    position::Encode,
    store::Store,
};

/// Sums of attention weights per entry, and of their squares.
type Sums = (Option<Tensor<3>>, Option<Tensor<3>>);

/// What a call returns.
pub(in crate::cache) trait Answer: Sized {
    /// Whether it needs the rows of entries that are decoded in place.
    const READS_ROWS: bool;

    /// Whether answers of one token each make an answer of all.
    const JOINS: bool;

    /// Answers a call over all entries, and sums the weights that the stages observe.
    fn of(
        context: Context<'_>,
        input: &LayerInput,
        all: &mut WorkingSet,
        encode: Option<Encode<'_>>,
        store: &dyn Store,
    ) -> Result<(Self, Sums)>;

    /// Joins answers of one token each; the last one where they [do not join](Self::JOINS).
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] for none.
    fn join(answers: Vec<Self>) -> Result<Self>;
}

fn nothing() -> Error {
    Error::EmptyPrompt { row: 0, columns: 0, padding: 0 }
}

/// The attention of a call, `[batch, query_heads, new, head_dim]`.
pub(in crate::cache) struct Attention(pub(in crate::cache) Tensor<4>);

impl Answer for Attention {
    const READS_ROWS: bool = false;
    const JOINS: bool = true;

    fn of(
        context: Context<'_>,
        input: &LayerInput,
        all: &mut WorkingSet,
        encode: Option<Encode<'_>>,
        store: &dyn Store,
    ) -> Result<(Self, Sums)> {
        let AttentionOutput { output, column_sums, column_squares } =
            attend(context, input, all, encode, store)?;
        Ok((Self(output), (column_sums, column_squares)))
    }

    fn join(answers: Vec<Self>) -> Result<Self> {
        if answers.is_empty() {
            return Err(nothing());
        }
        Ok(Self(Tensor::cat(answers.into_iter().map(|Self(output)| output).collect(), 2)))
    }
}

/// Entries that the queries of a call may attend to, in rectangles.
///
/// The numbers are those before the call compresses its layer: what it drops is dropped for the
/// next call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VisibleEntries {
    /// The queries with their positions encoded, `[batch, query_heads, new, head_dim]`; `None`
    /// where none were given.
    pub queries: Option<Tensor<4>>,
    /// Keys with their positions encoded, `[batch, kv_heads, columns, head_dim]`, of the type of
    /// the keys given. The last `new` columns are those of the call.
    pub keys: Tensor<4>,
    /// Values, of the shape and type of the keys.
    pub values: Tensor<4>,
    /// Entries that a query must not see, `[batch, query_heads, new, columns]`, true where hidden,
    /// as in [`burn::tensor::module::attention`]. `None` where a causal mask says it all: the last
    /// query sees every column, the one before it all but the last. A query of padding sees every
    /// column, so that no softmax is of nothing.
    pub mask: Option<Tensor<4, Bool>>,
}

impl Answer for VisibleEntries {
    const READS_ROWS: bool = true;
    const JOINS: bool = false;

    fn of(
        context: Context<'_>,
        input: &LayerInput,
        all: &mut WorkingSet,
        encode: Option<Encode<'_>>,
        store: &dyn Store,
    ) -> Result<(Self, Sums)> {
        let Context { shape, config, observes, .. } = context;
        let queries = asked(context, input, all, encode.as_ref())?;
        let window = config.window(context.layer);
        let mask = (input.span.padded || all.padded || window.is_some()).then(|| {
            let queries = input.queries.positions.clone();
            hidden(queries, all.positions(store), shape.group(), window)
        });
        let entries = all.entries(store, &input.held)?.clone();
        let Entries { keys, values, .. } = expand_clusters(entries, config.ops.as_ref())?;
        let keys = Encode::keys(encode.as_ref(), keys, config.ops.as_ref())?;
        // The weights that the stages observe are computed beside the model's own attention.
        let sums =
            if observes.counts_queries() || super::statistics::window_is_query(context, input) {
                let observed = attend(context, input, all, encode, store)?;
                (observed.column_sums, observed.column_squares)
            } else {
                (None, None)
            };
        let dtype = queries.dtype();
        let (keys, values) = (keys.cast(dtype), values.cast(dtype));
        Ok((Self { queries: Some(queries), keys, values, mask }, sums))
    }

    fn join(mut answers: Vec<Self>) -> Result<Self> {
        answers.pop().ok_or_else(nothing)
    }
}

/// Returns the entries that each query must not see, `[batch, kv_heads · group, queries, entries]`,
/// none for a query of padding. Positions are those of [`seen_entries`].
fn hidden(
    queries: Tensor<3, Int>,
    entries: Tensor<3, Int>,
    group: usize,
    window: Option<Window>,
) -> Tensor<4, Bool> {
    let hidden = seen_entries(&queries, &entries, window).bool_not();
    let [batch, heads, new, columns] = hidden.dims();
    let is_token = queries.greater_equal_scalar(0).unsqueeze_dim::<4>(3).expand(hidden.dims());
    hidden
        .bool_and(is_token)
        .reshape([batch, heads, 1, new, columns])
        .expand([batch, heads, group, new, columns])
        .reshape([batch, heads * group, new, columns])
}
