//! Named methods that look at keys and values and at no attention: what they keep does not hang on who asks last.

use super::{Policy, PositionMode, Schedule};
use crate::{
    allocate::HeadAdaptive,
    budget::{Budget, Recent},
    score::{
        Capacity, ChunkAttention, Compactor, Cur, ExpectedAttention, HeadMean, KeyDifference,
        KeyNorm, LagRelative, Leverage, Pool, QuestionAttention, Random, Redundancy, WholeChunks,
        WindowAttention,
    },
};

impl Policy {
    /// Knorm (Devoto et al., 2024): the tokens with the shortest keys.
    pub fn knorm(budget: Budget) -> Self {
        Self::custom("knorm", budget, KeyNorm {}).with_schedule(Schedule::prefill_only())
    }

    /// KeyDiff (Park et al., 2025): the tokens whose keys are least like the mean key; every 128 decoded tokens too.
    pub fn keydiff(budget: Budget) -> Self {
        Self::custom("keydiff", budget, KeyDifference {}).with_schedule(Schedule::always(128))
    }

    /// KeyDiff's tokens under AdaKV's head budgets.
    pub fn keydiff_adakv(budget: Budget) -> Self {
        Self::keydiff(budget).with_name("keydiff-adakv").with_allocate(HeadAdaptive::default())
    }

    /// Random tokens, the same for the same seed (0 here).
    pub fn random(budget: Budget) -> Self {
        Self::custom("random", budget, Random { seed: 0 }).with_schedule(Schedule::prefill_only())
    }

    /// LagKV (Liang et al., 2025): the first 4 tokens, and in partitions of 128 those whose channels differ most once scaled
    /// by the partition that follows; every 128 decoded tokens too.
    pub fn lagkv(budget: Budget) -> Self {
        Self::custom("lagkv", budget, LagRelative { lag: 128 })
            .with_sinks(4)
            .with_schedule(Schedule::always(128))
    }

    /// CurDKV (Sengupta et al., 2025): the first 4 tokens, and those whose key and value are long among 16 neighbours.
    pub fn cur(budget: Budget) -> Self {
        Self::custom("cur", budget, Cur { window: 16 })
            .with_sinks(4)
            .with_schedule(Schedule::prefill_only())
    }

    /// Compactor's leverage alone (Chari and Van Durme, 2025): the first 8 tokens, the last 4, and the keys that stand out of
    /// the space of the others.
    pub fn leverage(budget: Budget) -> Self {
        Self::compactor(budget).with_name("leverage").with_score(Leverage::default())
    }

    /// Compactor's non-causal attention alone (Chari and Van Durme, 2025): the first 8 tokens, the last 4, and what all
    /// queries of a token's own chunk of 256 attend to.
    pub fn chunk_attention(budget: Budget) -> Self {
        Self::compactor(budget)
            .with_name("chunk-attention")
            .with_score(ChunkAttention { chunk: 256, pool: Some(Pool::avg(3)) })
            .with_positions(PositionMode::Written)
    }

    /// Compactor (Chari and Van Durme, 2025): leverage and non-causal attention together.
    pub fn compactor(budget: Budget) -> Self {
        let attention = ChunkAttention { chunk: 256, pool: Some(Pool::avg(3)) };
        let score = Compactor { leverage: Leverage::default(), attention, blend: None };
        Self::custom("compactor", budget, score)
            .with_sinks(8)
            .with_recent(Recent::Tokens(4))
            .with_positions(PositionMode::Deferred)
            .with_schedule(Schedule::prefill_only())
    }

    /// ChunkKV (Liu et al., 2025): SnapKV's tokens in whole chunks of 20, one set a layer.
    pub fn chunkkv(budget: Budget) -> Self {
        let score =
            WindowAttention { window: 32, pool: Some(Pool::avg(5)), heads: HeadMean::Group };
        Self::snapkv(budget).with_name("chunkkv").with_score(WholeChunks::of(20, score))
    }

    /// FINCH (Corallo and Papotti, 2024): what the question attends to, the last 32 tokens of the prompt unless
    /// [`with_window`](Self::with_window) says how many they are, and the question; positions are re-counted inside the cache.
    pub fn finch(budget: Budget) -> Self {
        Self::snapkv(budget)
            .with_name("finch")
            .with_score(QuestionAttention { window: 32 })
            .with_positions(PositionMode::InCache)
    }

    /// R-KV (Cai et al., 2025): what the last 8 queries attend to, less what other keys say already, and those 8; every 128
    /// decoded tokens too.
    pub fn rkv(budget: Budget) -> Self {
        let attention =
            WindowAttention { window: 8, pool: Some(Pool::max(7)), heads: HeadMean::Group };
        Self::custom("r-kv", budget, Redundancy { attention, lambda: 0.07 })
            .with_recent(Recent::Tokens(8))
            .with_schedule(Schedule::always(128))
    }

    /// Expected Attention (Devoto et al., 2025): the first 4 tokens, and those that queries like the prompt's are expected to
    /// attend to at the next 512 positions, times the length of their values.
    pub fn expected_attention(budget: Budget) -> Self {
        let score = ExpectedAttention { future: 512, epsilon: 0.0 };
        Self::custom("expected-attention", budget, score)
            .with_sinks(4)
            .with_schedule(Schedule::prefill_only())
    }

    /// Expected Attention with ε = 0.01 under AdaKV's head budgets.
    pub fn expected_attention_adakv(budget: Budget) -> Self {
        Self::expected_attention(budget)
            .with_name("expected-attention-adakv")
            .with_score(ExpectedAttention { future: 512, epsilon: 0.01 })
            .with_allocate(HeadAdaptive::default())
    }

    /// CapKV (2026): the first 4 tokens, and those whose values no others say, weighed by how their keys point to the mean
    /// query.
    pub fn capkv(budget: Budget) -> Self {
        Self::custom("capkv", budget, Capacity { tau: 5.0, future: 512 })
            .with_sinks(4)
            .with_schedule(Schedule::prefill_only())
    }
}
