//! LagKV: Liang et al., 2025, *LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens
//! Are Important* ([arXiv 2504.04704](https://arxiv.org/abs/2504.04704)).
//!
//! ```text
//! x̃[j, c] = (x[j, c] − min of channel c in p + 1) / (max of c in p + 1 − min of c in p + 1)
//! u[j]    = softmax over the tokens of p of the standard deviation of x̃[j] over its channels
//! s[j]    = rank of (u_key[j] + u_value[j]) / 2 in p, over L      for each partition p of L tokens
//! ```
//!
//! Protected: the first 4 tokens; the last ones, without a whole partition behind them, score
//! highest.

use burn::tensor::{DType, FloatDType, Tensor, activation::softmax};
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    ops::iota,
    score::{
        Scorer,
        support::{FromFirst, per_head},
    },
};

/// Standard deviation over the channels of a token, each scaled by its range in the tokens that
/// follow: LagKV (Liang et al., 2025, [arXiv 2504.04704](https://arxiv.org/abs/2504.04704)).
///
/// Behind the sinks the entries of a head are partitioned. Each channel of a token is scaled by its
/// minimum and maximum in the next partition. The deviation over the channels passes through a
/// softmax over the partition, and the mean of keys and values is taken. A token's score is its
/// rank in its partition over the partition's size. Sinks, and tokens without a whole partition
/// behind them, score 1, more than any rank. With fewer than two partitions a later token scores
/// higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LagKv {
    /// Number of tokens of a partition.
    pub lag: usize,
}

impl Scorer for LagKv {
    fn name(&self) -> &str {
        "lagkv"
    }

    fn summary(&self) -> String {
        format!("{} {}", self.name(), self.lag)
    }

    fn check(&self) -> Result<()> {
        match self.lag {
            0 | 1 => check::refuse("score.lag", self.lag, "at least 2"),
            lag => check::window("score.lag", lag),
        }
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let (sinks, lag) = (view.protect.sinks, self.lag);
        let dims = view.positions().dims();
        let entries = FromFirst::of(view);
        let behind = |held: &usize| held.saturating_sub(sinks);
        // Entries of a head that a partition follows.
        let scored = |held: &usize| (behind(held) / lag).saturating_sub(1) * lag;
        let of_heads = |numbers: &dyn Fn(&usize) -> usize| {
            per_head(dims, view.lengths.iter().map(numbers), view).expand(dims)
        };

        let number = entries.numbers() - sinks as i64;
        let most = of_heads(&|held| behind(held).max(1)).cast(FloatDType::F32);
        let late = number.clone().cast(FloatDType::F32) / most;
        let late = late.mask_fill(number.clone().lower_scalar(0), 1.0);
        let widest = view.lengths.iter().map(scored).max().unwrap_or(0);
        if widest == 0 {
            return Ok(late);
        }
        let spread = |x: Tensor<4>| spread(entries.rows(x, sinks, widest + lag), lag);
        let scores = (spread(view.keys()?) + spread(view.values()?)) / 2.0;
        let ranks = entries.at_columns(ranks(scores) / lag as f64, sinks);
        let in_partition = number.clone().lower(of_heads(&scored));
        let in_partition = in_partition.bool_and(number.greater_equal_scalar(0));
        let ranked = ranks.ones_like().mask_where(in_partition, ranks);
        let too_few = of_heads(&scored).equal_scalar(0);
        Ok(ranked.mask_where(too_few, late))
    }
}

/// Softmax over each partition but the last of the deviation of a token's channels, scaled by their
/// range in the next partition: `[batch, heads, tokens, channels]` becomes `[batch, heads,
/// partitions, lag]`.
fn spread(x: Tensor<4>, lag: usize) -> Tensor<4> {
    let [batch, heads, tokens, channels] = x.dims();
    let partitions = tokens / lag - 1;
    let x = x.cast(DType::F32);
    let dims = [batch * heads, partitions, lag, channels];
    let part = |from: usize| x.clone().narrow(2, from, partitions * lag).reshape(dims);
    let next = part(lag);
    let (least, most) = (next.clone().min_dim(2), next.max_dim(2));
    let range = most - least.clone();
    let range = range.clone().mask_fill(range.equal_scalar(0.0), 1.0);
    let scaled = (part(0) - least) / range;
    let mean = scaled.clone().mean_dim(3);
    let variance = (scaled - mean).square().sum_dim(3) / channels.saturating_sub(1).max(1) as f64;
    softmax(variance.sqrt().reshape([batch, heads, partitions, lag]), 3)
}

/// Rank of each score in its partition, 0 the lowest, of equal ones the first: `[batch, heads,
/// partitions, lag]` becomes `[batch, heads, partitions · lag]`.
fn ranks(scores: Tensor<4>) -> Tensor<3> {
    let [batch, heads, partitions, lag] = scores.dims();
    let rows = batch * heads * partitions;
    let scores = scores.reshape([rows, lag, 1]);
    let dims = [rows, lag, lag];
    let other = scores.clone().swap_dims(1, 2).expand(dims);
    let own = scores.expand(dims);
    let place = iota(dims, &own.device());
    let before = place.clone().lower(place.swap_dims(1, 2));
    let below = other.clone().lower(own.clone()).bool_or(other.equal(own).bool_and(before));
    below.float().cast(DType::F32).sum_dim(2).reshape([batch, heads, partitions * lag])
}
