//! Named methods that read a profile of the model: measurements of its heads, layers and queries
//! made ahead of time.

use crate::{
    HeadScoreKind,
    allocate::{ErrorAware, HeadProfile, StreamingHeads},
    budget::{Budget, Recent},
    policy::{Policy, Schedule},
    score::{HeadMean, Pool, QFilter, Recency, RetrievalHeads, TriAttention, WindowAttention},
};

/// Bounds of CompressKV's layer budgets (appendix C.1).
pub(super) const COMPRESSKV_LAYERS: ErrorAware = ErrorAware { least: 32, most: 3.0 };

impl Policy {
    /// HeadKV (Fu et al., 2024): SnapKV, with larger budgets for heads that retrieve, by the
    /// model's [profile](Self::with_profile).
    pub fn headkv(budget: Budget) -> Self {
        Self::snapkv(budget)
            .with_name("headkv")
            .with_allocator(HeadProfile { beta: 1.2, by: HeadScoreKind::Headkv })
    }

    /// CompressKV: the tokens that the last 8 queries attend to in the layer's 4 semantic retrieval
    /// heads, mean-pooled over 5 tokens, the same in every head of a layer. Layer budgets follow
    /// how much each layer suffers from a small cache. The heads and these errors are in the
    /// model's [profile](Self::with_profile).
    pub fn compresskv(budget: Budget) -> Self {
        let heads = HeadMean::Retrieval(RetrievalHeads::top(4));
        Self::snapkv(budget)
            .with_name("compresskv")
            .with_scorer(WindowAttention { window: 8, pool: Some(Pool::avg(5)), heads })
            .with_recent(Recent::Tokens(8))
            .with_allocator(COMPRESSKV_LAYERS)
    }

    /// Q-Filter (Godey et al., 2025): the tokens whose keys point furthest along the direction that
    /// the queries of their head share, by the model's [profile](Self::with_profile).
    pub fn q_filter(budget: Budget) -> Self {
        Self::custom("q-filter", budget, QFilter {}).with_schedule(Schedule::prefill_only())
    }

    /// TriAttention (Mao et al., 2026): the tokens that the mean query will attend to, by the
    /// model's [profile](Self::with_profile). A sixteenth of the budget (128 of 2,048) is for the
    /// last tokens. Compresses again every 128 decoded tokens.
    pub fn triattention(budget: Budget) -> Self {
        Self::custom("triattention", budget, TriAttention::default())
            .with_recent(Recent::Share(0.0625))
            .with_schedule(Schedule::always(128))
    }

    /// DuoAttention (Xiao et al., 2024) with heads ranked on the fly, by the model's
    /// [profile](Self::with_profile): everything in as many heads as the budget allows, and 16
    /// first and 48 last tokens in the others.
    pub fn duoattention(budget: Budget) -> Self {
        Self::custom("duoattention", budget, Recency {})
            .with_sinks(16)
            .with_allocator(StreamingHeads { tokens: 64 })
            .with_schedule(Schedule::prefill_only())
    }
}
