//! Named methods by keys and values alone: the tokens they keep do not depend on the last queries.

use crate::{
    budget::{Budget, Recent},
    policy::{Policy, PositionMode, Schedule},
    score::{CapKv, Compactor, CurDkv, KeyDiff, Knorm, LagKv, Leverage, NonCausal, Pool},
};

impl Policy {
    /// Knorm (Devoto et al., 2024): the tokens with the shortest keys.
    pub fn knorm(budget: Budget) -> Self {
        Self::custom("knorm", budget, Knorm {}).with_schedule(Schedule::prefill_only())
    }

    /// KeyDiff (Park et al., 2025): the tokens whose keys are least like the mean key. Compresses
    /// again every 128 decoded tokens.
    pub fn keydiff(budget: Budget) -> Self {
        Self::custom("keydiff", budget, KeyDiff {}).with_schedule(Schedule::always(128))
    }

    /// LagKV (Liang et al., 2025): the first 4 tokens, and in each partition of 128 those whose
    /// channels differ most after scaling by the next partition. Compresses again every 128 decoded
    /// tokens.
    pub fn lagkv(budget: Budget) -> Self {
        Self::custom("lagkv", budget, LagKv { lag: 128 })
            .with_sinks(4)
            .with_schedule(Schedule::always(128))
    }

    /// CurDKV (Sengupta et al., 2025): the first 4 tokens, and those with a long key and value
    /// among 16 neighbours.
    pub fn curdkv(budget: Budget) -> Self {
        Self::custom("curdkv", budget, CurDkv { window: 16 })
            .with_sinks(4)
            .with_schedule(Schedule::prefill_only())
    }

    /// Compactor's leverage alone (Chari and Van Durme, 2025): the first 8 tokens, the last 4, and
    /// those with keys that stand out from the space of the other keys.
    pub fn leverage(budget: Budget) -> Self {
        Self::compactor(budget).with_name("leverage").with_scorer(Leverage::default())
    }

    /// Compactor (Chari and Van Durme, 2025): leverage and non-causal attention together.
    pub fn compactor(budget: Budget) -> Self {
        let attention = NonCausal { chunk: 256, pool: Some(Pool::avg(3)) };
        let score = Compactor { leverage: Leverage::default(), attention, blend: None };
        Self::custom("compactor", budget, score)
            .with_sinks(8)
            .with_recent(Recent::Tokens(4))
            .with_positions(PositionMode::Deferred)
            .with_schedule(Schedule::prefill_only())
    }

    /// CapKV (2026): the first 4 tokens, and those with values least predictable from the others,
    /// weighted by how closely their keys point to the mean query.
    pub fn capkv(budget: Budget) -> Self {
        Self::custom("capkv", budget, CapKv { tau: 5.0, future: 512 })
            .with_sinks(4)
            .with_schedule(Schedule::prefill_only())
    }
}
