use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};

use super::{Bounds, Encoded, HeldQueries, Measures, Moments, Window, WindowMoments};
use crate::{
    CacheShape, Error, Profile, QueryStatistics, Result,
    budget::Protect,
    ops::{
        Entries, OpError, Ops, SelectInput, Selection, Split, Statistic, constant_ints,
        expand_clusters, group_mean, select_entries,
    },
    position::{Encode, mean_rotation},
};

/// State of a layer, lent to the scorer, the allocator and the reducer in turn.
///
/// Numbers per head are per batch row and kv head, rows first.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LayerView<'a> {
    /// The layer.
    pub layer: usize,
    /// The dimensions of the cache.
    pub shape: CacheShape,
    /// The entries.
    pub entries: &'a Entries,
    /// Number of entries per head, which are its last columns.
    pub lengths: &'a [usize],
    /// Tokens seen per batch row, padding not counted.
    pub seen: &'a [usize],
    /// The policy's budget per layer and batch row, in tokens.
    pub budget: &'a [usize],
    /// The tokens that are kept whatever their scores.
    pub protect: Protect,
    /// Whether tokens of a prompt have just arrived; false in decoding.
    pub prompt: bool,
    /// Whether scores are checked for NaN, see [`SelectInput::check`].
    pub check: bool,
    /// Whether heads of the layer may hold different tokens in the same column.
    pub heads_differ: bool,
    /// Whether the kept entries may begin with more padding than their longest head needs, because
    /// the store packs heads.
    pub packs_heads: bool,
    /// The number of last queries that are not padding, per batch row.
    pub window_queries: &'a [usize],
    /// With [`AttentionRequest::window`](crate::score::AttentionRequest::window): the last queries.
    pub(crate) window: Option<&'a Window<'a>>,
    /// With [`AttentionRequest::queries`](crate::score::AttentionRequest::queries): the queries
    /// since the last compression.
    pub(crate) queries: Option<&'a HeldQueries>,
    /// The encoding of positions in this call.
    pub(crate) encoded: Option<&'a Encoded<'a>>,
    /// The factor of query-key products before the softmax.
    pub scale: f64,
    /// The output projection of the layer, if the cache was given one.
    pub(crate) output_weight: Option<&'a Tensor<2>>,
    /// The profile of the model, if the policy has one.
    pub profile: Option<&'a Profile>,
    /// The allocator's [measures](crate::allocate::Allocator::measure) of the layers of the prompt
    /// so far.
    pub measures: &'a Measures,
    /// With [`AttentionRequest::second_pass`](crate::score::AttentionRequest::second_pass): the
    /// weight each entry received in the second pass.
    pub(crate) given: Option<&'a Tensor<3>>,
    /// The scores, once they are computed.
    pub(crate) scores: Option<&'a Tensor<3>>,
    /// The state that the reducer returned when it last ran in this layer, `[batch, numbers]`.
    pub state: Option<&'a Tensor<2>>,
    /// The hot operations.
    pub ops: &'a dyn Ops,
}

impl<'a> LayerView<'a> {
    /// Returns the keys as they are held, `[batch, kv_heads, entries, head_dim]`. Where tokens
    /// share keys, this call lays them out.
    ///
    /// # Errors
    /// [`Error::Operation`] if an operation refused its input.
    pub fn keys(&self) -> Result<Tensor<4>> {
        Ok(expand_clusters(self.entries.clone(), self.ops)?.keys)
    }

    /// Returns the values, `[batch, kv_heads, entries, head_dim]`. Where tokens share values, this
    /// call lays them out.
    ///
    /// # Errors
    /// [`Error::Operation`] if an operation refused its input.
    pub fn values(&self) -> Result<Tensor<4>> {
        Ok(expand_clusters(self.entries.clone(), self.ops)?.values)
    }

    /// Returns the keys with their positions encoded, as queries meet them,
    /// `[batch, kv_heads, entries, head_dim]`.
    ///
    /// # Errors
    /// [`Error::Operation`] if an operation refused its input, or [`Error::Stage`] where layers are
    /// compressed again because others have arrived.
    pub fn encoded_keys(&self, stage: &str) -> Result<Tensor<4>> {
        let encoded = self.encoded.ok_or_else(|| without(stage, "positions"))?;
        Encode::keys(encoded.keys.as_ref(), self.keys()?, self.ops)
    }

    /// Returns the mean of the matrices that encode a query at the next `count` positions,
    /// multiplied from the right: `[batch, 1, head_dim, head_dim]`, f32.
    ///
    /// # Errors
    /// The errors of [`encoded_keys`](Self::encoded_keys), and [`Error::Stage`] where queries and
    /// keys come rotated.
    pub fn mean_rotation(&self, count: usize, stage: &str) -> Result<Tensor<4>> {
        let Encoded { encoding, next, .. } = self.encoding_ahead(stage)?;
        let keys = &self.entries.keys;
        mean_rotation(*encoding, next, count, keys.dims()[3], &keys.device())
    }

    /// Encodes queries `x`, `[1, query_heads, 1, head_dim]`, at the positions `ahead` of the next
    /// token's, and returns the mean: `[batch, query_heads, 1, head_dim]`, f32. Positions that
    /// cannot be encoded are left out; if none can, the last encodable position is used.
    ///
    /// # Errors
    /// The errors of [`mean_rotation`](Self::mean_rotation).
    pub fn queries_ahead(&self, x: Tensor<4>, ahead: &[usize], stage: &str) -> Result<Tensor<4>> {
        self.encoding_ahead(stage)?.ahead(x, ahead)
    }

    /// Returns the encoding of future positions. A stage that did not request it may meet rotated
    /// queries and keys.
    fn encoding_ahead(&self, stage: &str) -> Result<&'a Encoded<'a>> {
        let encoded = self.encoded.ok_or_else(|| without(stage, "positions"))?;
        if encoded.encoding.comes_rotated() {
            return Err(without(stage, "position encoding: queries and keys come rotated"));
        }
        Ok(encoded)
    }

    /// The output projection of the layer, `[query_heads · head_dim, hidden]`.
    ///
    /// # Errors
    /// [`Error::Stage`] if the stage did not say that it reads it.
    pub fn output_weight(&self, stage: &str) -> Result<Tensor<2>> {
        self.output_weight.cloned().ok_or_else(|| without(stage, "output projection"))
    }

    /// The queries since the last compression, before their positions are encoded.
    ///
    /// # Errors
    /// [`Error::Stage`] if the stage did not say that it observes them.
    pub fn queries(&self, stage: &str) -> Result<&'a HeldQueries> {
        self.queries.ok_or_else(|| without(stage, "queries"))
    }

    /// The weight that each entry received in a second pass over the prompt,
    /// `[batch, kv_heads, entries]`, f32.
    ///
    /// # Errors
    /// [`Error::Stage`] if there was none.
    pub fn given(&self, stage: &str) -> Result<&'a Tensor<3>> {
        self.given.ok_or_else(|| without(stage, "second pass over the prompt"))
    }

    /// The position each entry was written at, `[batch, kv_heads, entries]`; −1 is padding.
    /// Ascending, but in decode steps of a scorer that does not [depend on the
    /// order](crate::score::Dependencies::order).
    pub fn positions(&self) -> &'a Tensor<3, Int> {
        &self.entries.positions
    }

    /// One of the attention statistics, `[batch, heads, entries]`, f32.
    ///
    /// # Errors
    /// [`Error::Stage`] if the stage did not say that it observes it.
    pub fn statistic(&self, statistic: Statistic, stage: &str) -> Result<Tensor<3>> {
        let found = self.entries.statistics.get(statistic);
        found.ok_or_else(|| without(stage, &format!("{statistic:?}")))
    }

    /// Returns the weights of the last `queries` queries, `[batch, query_heads, queries, entries]`,
    /// f32, the newest last, and how many of them are a row's own. There are fewer queries if fewer
    /// have been seen; weights are zero where a query was padding.
    ///
    /// This call computes the weights. If sums over the queries are enough,
    /// [`moments`](Self::moments) is faster.
    ///
    /// # Errors
    /// [`Error::Stage`] if the stage did not say that it observes a window.
    pub fn last_queries(&self, queries: usize, stage: &str) -> Result<(Tensor<4>, Vec<usize>)> {
        let window = self.window.ok_or_else(|| without(stage, "window"))?;
        let weights = window.weights()?;
        let all = weights.dims()[2];
        let kept = queries.min(all);
        let own = self.window_queries.iter().map(|&own| own.min(kept)).collect();
        Ok((weights.narrow(2, all - kept, kept), own))
    }

    /// Returns sums of the weights over the last `queries` queries, or over fewer if fewer have
    /// been seen.
    ///
    /// # Errors
    /// [`Error::Stage`] if the stage did not say that it observes a window.
    pub fn moments(&self, queries: usize, wanted: Moments, stage: &str) -> Result<WindowMoments> {
        let window = self.window.ok_or_else(|| without(stage, "window"))?;
        window.moments(queries, self.window_queries, wanted)
    }

    /// Returns the policy's scores, `[batch, kv_heads, entries]`, f32. A reducer always has them;
    /// an allocator has them if it [asks for them](crate::allocate::Allocator::reads_scores).
    ///
    /// # Errors
    /// [`Error::Stage`] if there are none.
    pub fn scores(&self, stage: &str) -> Result<&'a Tensor<3>> {
        self.scores.ok_or_else(|| without(stage, "scores"))
    }

    /// The mean over the query heads that share a kv head: `[batch, query_heads, entries]` becomes
    /// `[batch, kv_heads, entries]`. Scores of kv heads are unchanged.
    pub fn group_mean(&self, scores: Tensor<3>) -> Tensor<3> {
        group_mean(scores, self.shape.kv_heads)
    }

    /// The mean over all heads of `scores`, query heads or kv heads, the same for every kv head:
    /// `[batch, heads, entries]` becomes `[batch, kv_heads, entries]`. Where kv heads hold
    /// different tokens, it is taken token by token, and a head gives 0 to a token that it does not
    /// hold.
    pub fn layer_mean(&self, scores: Tensor<3>) -> Tensor<3> {
        let all: Vec<usize> = (0..scores.dims()[1]).collect();
        self.mean_of(scores, &all)
    }

    /// The mean over `heads` of `scores`, as [`layer_mean`](Self::layer_mean) takes it over all
    /// heads.
    pub fn mean_of(&self, scores: Tensor<3>, heads: &[usize]) -> Tensor<3> {
        let [batch, all, entries] = scores.dims();
        let CacheShape { kv_heads, .. } = self.shape;
        let device = scores.device();
        let pick = |list: Vec<usize>| {
            let list: Vec<i64> = list.into_iter().map(|index| index as i64).collect();
            let length = list.len();
            constant_ints("heads", list, [length], &device)
        };
        let scores = scores.select(1, pick(heads.to_vec()));
        if !self.heads_differ {
            return scores.mean_dim(1).expand([batch, kv_heads, entries]);
        }
        let kv_head = pick(heads.iter().map(|head| head * kv_heads / all).collect());
        let written = self.positions().clone().greater_equal_scalar(0);
        let positions = self.positions().clone().clamp_min(0);
        let scores = scores.mask_fill(written.select(1, kv_head.clone()).bool_not(), 0.0);
        let seen = self.seen.iter().copied().max().unwrap_or(0);
        let none = Tensor::zeros([batch, heads.len(), seen], (&device, DType::F32));
        let tokens = positions.clone().select(1, kv_head);
        let of_tokens = none.scatter(2, tokens, scores, IndexingUpdateOp::Add);
        of_tokens.mean_dim(1).expand([batch, kv_heads, seen]).gather(2, positions)
    }

    /// The policy's profile.
    ///
    /// # Errors
    /// [`Error::Stage`] if there is none.
    pub fn profile(&self, stage: &str) -> Result<&'a Profile> {
        self.profile.ok_or_else(|| without(stage, "profile"))
    }

    /// The statistics of the model's queries in the policy's profile.
    ///
    /// # Errors
    /// [`Error::Stage`] if there is no profile, or it says nothing of them.
    pub fn query_statistics(&self, stage: &str) -> Result<&'a QueryStatistics> {
        let statistics = self.profile(stage)?.queries.as_ref();
        statistics.ok_or_else(|| without(stage, "statistics of queries, which `calibrate` writes"))
    }

    /// Number of tokens that are kept whatever their scores under a budget of `budget` tokens; at
    /// most the budget.
    pub fn protected(&self, budget: usize) -> usize {
        let recent = self.protect.recent_tokens(budget);
        self.protect.sinks.saturating_add(recent).min(budget)
    }

    /// Returns the scores of the entries of a head that are not protected under a budget of
    /// `budget` tokens, out of the `scores` of all columns of all heads.
    pub(crate) fn unprotected<'s>(
        &self,
        scores: &'s [f32],
        head: usize,
        budget: usize,
    ) -> &'s [f32] {
        let (columns, held) = (self.entries.columns(), self.lengths[head]);
        let first = self.protect.sinks.min(held);
        let last = held.saturating_sub(self.protect.recent_tokens(budget)).max(first);
        &scores[(head + 1) * columns - held..][first..last]
    }

    /// Returns this layer's share, in a batch row, of tokens that are shared out among all measured
    /// layers. `share_out` gets their measures, in order, and returns as many shares; it is called
    /// again only when `bounds` have changed.
    ///
    /// # Errors
    /// [`Error::Stage`] if nothing was measured of this layer.
    pub fn share(
        &self,
        row: usize,
        bounds: Bounds,
        stage: &str,
        share_out: impl FnOnce(&[f64]) -> Vec<usize>,
    ) -> Result<usize> {
        let share = self.measures.share(self.layer, row, bounds, share_out);
        share.ok_or_else(|| without(stage, &format!("measure of layer {}", self.layer)))
    }

    /// Returns the selected entries with their statistics, one row per token.
    ///
    /// # Errors
    /// [`Error::Operation`] if an operation refused its input.
    pub fn selected(&self, selection: &Selection) -> Result<Entries> {
        Ok(select_entries(self.entries.clone(), selection, self.ops)?)
    }

    /// Selects the entries to keep, `keep` of each head: the protected ones, then the highest
    /// scores.
    ///
    /// # Errors
    /// Errors of [`SelectOps::select`](crate::ops::SelectOps::select), or [`Error::Stage`] if
    /// there are no scores.
    pub fn select(&self, keep: &[usize]) -> Result<Selection> {
        self.with_selection(keep, |selection| self.ops.select(selection))
    }

    /// Selects as [`select`](Self::select) does, and also returns the entries that are not kept.
    ///
    /// # Errors
    /// The errors of [`select`](Self::select).
    pub fn split(&self, keep: &[usize]) -> Result<Split> {
        self.with_selection(keep, |selection| self.ops.split(selection))
    }

    fn with_selection<T>(
        &self,
        keep: &[usize],
        run: impl FnOnce(SelectInput<'_>) -> std::result::Result<T, OpError>,
    ) -> Result<T> {
        let recent: Vec<usize> =
            keep.iter().map(|&keep| self.protect.recent_tokens(keep)).collect();
        let selected = run(SelectInput {
            scores: self.scores("selection")?,
            lengths: self.lengths,
            keep,
            sinks: self.protect.sinks,
            recent: &recent,
            check: self.check,
        });
        selected.map_err(|error| Error::of_layer(error, self.layer))
    }
}

/// Error of a stage that was called without something it needs.
fn without(stage: &str, what: &str) -> Error {
    Error::stage("stage", stage, format!("was called without its {what}"))
}
