//! Named methods that look at the last queries' outputs, and at what is known of queries and heads ahead of time.

use super::{Policy, Schedule};
use crate::{
    allocate::{LazyLayers, StreamingHeads},
    budget::{Budget, Recent},
    score::{DropError, QueryDirection, Recency, Trigonometric},
    store::Ragged,
};

impl Policy {
    /// DropKV (2026): the tokens without which the outputs of the last 32 queries would move furthest, and those 32.
    pub fn dropkv(budget: Budget) -> Self {
        Self::custom("dropkv", budget, DropError { window: 32, pool: None })
            .with_recent(Recent::Tokens(32))
            .with_schedule(Schedule::prefill_only())
    }

    /// Q-Filter (Godey et al., 2025): the tokens whose keys point furthest along the direction that the queries of their head
    /// share, by the model's [profile](Self::with_profile).
    pub fn q_filter(budget: Budget) -> Self {
        Self::custom("q-filter", budget, QueryDirection {}).with_schedule(Schedule::prefill_only())
    }

    /// TriAttention (Mao et al., 2026): a sixteenth of the budget for the last tokens (128 of 2,048), the rest for those that the
    /// mean query will attend to, by the model's [profile](Self::with_profile); every 128 decoded tokens too.
    pub fn triattention(budget: Budget) -> Self {
        Self::custom("triattention", budget, Trigonometric::default())
            .with_recent(Recent::Share(0.0625))
            .with_schedule(Schedule::always(128))
    }

    /// SimLayerKV (Zhang et al., 2024): everything, but in layers whose last query gives more than 0.9 of its attention to
    /// the first 4 tokens and the last ones these only, as many as the budget says.
    pub fn simlayerkv(budget: Budget) -> Self {
        Self::custom("simlayerkv", budget, Recency {})
            .with_sinks(4)
            .with_allocate(LazyLayers { threshold: 0.9, window: 1 })
            .with_store(Ragged {})
            .with_schedule(Schedule::prefill_only())
    }

    /// DuoAttention (Xiao et al., 2024) with heads ranked on the fly: everything in as many heads as the budget allows, 16
    /// first and 48 last tokens in the others, by the model's [profile](Self::with_profile).
    pub fn duoattention(budget: Budget) -> Self {
        Self::custom("duoattention", budget, Recency {})
            .with_sinks(16)
            .with_allocate(StreamingHeads { tokens: 64 })
            .with_schedule(Schedule::prefill_only())
    }
}
