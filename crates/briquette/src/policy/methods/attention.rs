//! Named methods that keep the tokens that queries attend to.

use crate::{
    allocate::{HeadAdaptive, LazyLayers, Preference, Pyramid},
    budget::{Budget, Recent},
    policy::{Policy, PositionMode, Schedule},
    score::{
        AccumulatedAttention, Cake, ChunkKv, DropKv, ExpectedAttention, Finch, HeadMean, NonCausal,
        Pool, RKv, Recency, RoCo, WindowAttention,
    },
    store::Ragged,
};

impl Policy {
    /// H2O (Zhang et al., 2023): half of the budget for the tokens with the most accumulated
    /// attention, half for the last ones.
    pub fn h2o(budget: Budget) -> Self {
        Self::custom("h2o", budget, AccumulatedAttention::default()).with_recent(Recent::Share(0.5))
    }

    /// TOVA (Oren et al., 2024): the tokens that the last query attends to, by the mean over all
    /// heads, the same in every head of a layer. The last token itself is always kept.
    pub fn tova(budget: Budget) -> Self {
        let score = WindowAttention { window: 1, pool: None, heads: HeadMean::Layer };
        Self::custom("tova", budget, score).with_recent(Recent::Tokens(1))
    }

    /// RoCo (Ren and Zhu, 2024): the tokens with the highest mean attention, the first 4 tokens and
    /// the last 10. A quarter of the budget is for the tokens whose attention varies most.
    pub fn roco(budget: Budget) -> Self {
        Self::custom("roco", budget, RoCo { std_share: 0.25 })
            .with_sinks(4)
            .with_recent(Recent::Tokens(10))
    }

    /// SnapKV (Li et al., 2024): the prompt's tokens that its last 32 queries attend to,
    /// mean-pooled over 5 tokens, and the window itself. Decoded tokens are all kept, as in the
    /// paper.
    pub fn snapkv(budget: Budget) -> Self {
        let score =
            WindowAttention { window: 32, pool: Some(Pool::avg(5)), heads: HeadMean::Group };
        Self::custom("snapkv", budget, score)
            .with_recent(Recent::Tokens(32))
            .with_schedule(Schedule::prefill_only())
    }

    /// PyramidKV (Cai et al., 2024): SnapKV, with budgets that fall from the first layer to the
    /// last.
    pub fn pyramidkv(budget: Budget) -> Self {
        Self::snapkv(budget).with_name("pyramidkv").with_allocator(Pyramid { beta: 20.0 })
    }

    /// CAKE (Qin et al., 2025): tokens by the mean and variance of the last 32 queries' attention,
    /// layer budgets by the entropy and variance of each layer's attention.
    pub fn cake(budget: Budget) -> Self {
        Self::snapkv(budget)
            .with_name("cake")
            .with_scorer(Cake { window: 32, gamma: 200.0, pool: Some(Pool::avg(5)) })
            .with_allocator(Preference { window: 32, tau1: 1.0, tau2: 1.0 })
    }

    /// AdaKV (Feng et al., 2024): SnapKV, with larger budgets for the heads with the highest
    /// scores.
    pub fn adakv(budget: Budget) -> Self {
        Self::snapkv(budget).with_name("adakv").with_allocator(HeadAdaptive::default())
    }

    /// SimLayerKV (Zhang et al., 2024): everything, except in lazy layers. There the last query
    /// gives more than 0.9 of its attention to the first 4 tokens and the last ones; only those
    /// tokens are kept, as many as the budget allows.
    pub fn simlayerkv(budget: Budget) -> Self {
        Self::custom("simlayerkv", budget, Recency {})
            .with_sinks(4)
            .with_allocator(LazyLayers { threshold: 0.9, window: 1 })
            .with_store(Ragged {})
            .with_schedule(Schedule::prefill_only())
    }

    /// ChunkKV (Liu et al., 2025): SnapKV's tokens in whole chunks of 20, the same in every head of
    /// a layer.
    pub fn chunkkv(budget: Budget) -> Self {
        let score =
            WindowAttention { window: 32, pool: Some(Pool::avg(5)), heads: HeadMean::Group };
        Self::snapkv(budget).with_name("chunkkv").with_scorer(ChunkKv::of(20, score))
    }

    /// FINCH (Corallo and Papotti, 2024): the tokens that the question attends to, and the question
    /// itself. The question is the last 32 tokens of the prompt, unless
    /// [`with_window`](Self::with_window) sets another number. Positions are re-counted inside the
    /// cache.
    pub fn finch(budget: Budget) -> Self {
        Self::snapkv(budget)
            .with_name("finch")
            .with_scorer(Finch { window: 32 })
            .with_positions(PositionMode::InCache)
    }

    /// R-KV (Cai et al., 2025): the tokens that the last 8 queries attend to, with a penalty for
    /// keys that resemble many others, and the last 8. Compresses again every 128 decoded tokens.
    pub fn rkv(budget: Budget) -> Self {
        let attention =
            WindowAttention { window: 8, pool: Some(Pool::max(7)), heads: HeadMean::Group };
        Self::custom("r-kv", budget, RKv { attention, lambda: 0.07 })
            .with_recent(Recent::Tokens(8))
            .with_schedule(Schedule::always(128))
    }

    /// Compactor's non-causal attention alone (Chari and Van Durme, 2025): the first 8 tokens, the
    /// last 4, and those that the queries of their own chunk of 256 attend to, earlier queries
    /// included.
    pub fn non_causal(budget: Budget) -> Self {
        Self::compactor(budget)
            .with_name("non-causal")
            .with_scorer(NonCausal { chunk: 256, pool: Some(Pool::avg(3)) })
            .with_positions(PositionMode::Written)
    }

    /// Expected Attention (Devoto et al., 2025): the first 4 tokens, and those with the highest
    /// expected attention times the length of their values. The attention is that of queries like
    /// the prompt's at the next 512 positions.
    pub fn expected_attention(budget: Budget) -> Self {
        let score = ExpectedAttention { future: 512, epsilon: 0.0 };
        Self::custom("expected-attention", budget, score)
            .with_sinks(4)
            .with_schedule(Schedule::prefill_only())
    }

    /// DropKV (2026): the tokens without which the outputs of the last 32 queries would move
    /// furthest, and the last 32 tokens.
    pub fn dropkv(budget: Budget) -> Self {
        Self::custom("dropkv", budget, DropKv { window: 32, pool: None })
            .with_recent(Recent::Tokens(32))
            .with_schedule(Schedule::prefill_only())
    }
}
