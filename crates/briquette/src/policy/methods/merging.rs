//! Named methods that merge the tokens they do not keep.

use crate::{
    allocate::{Share, VarianceShare},
    budget::{Budget, Recent},
    policy::{Policy, PositionMode, Schedule},
    reduce::{EmaMerge, EvictThenMerge, GaussianMerge, ValueMerge},
    score::Ems,
};

impl Policy {
    /// CaM (Zhang et al., 2024): H2O, with the values of tokens evicted in decoding added to the 32
    /// kept behind them.
    pub fn cam(budget: Budget) -> Self {
        Self::h2o(budget).with_name("cam").with_reducer(ValueMerge {
            window: 32,
            seed: 0,
            prompts: false,
        })
    }

    /// KVMerger (Wang et al., 2024, section 5.1) as the paper runs it at half of the context. 34 %
    /// of the kept tokens are the last ones, and 24 % those with the most accumulated attention;
    /// neighbours among the others are merged.
    pub fn kvmerger(budget: Budget) -> Self {
        Self::kvmerger_with("kvmerger", budget, 0.34, 0.24)
    }

    /// KVMerger under the name of its setting: 17 % and 12 % of a context, when 50 % of it are
    /// kept.
    pub fn kvmerger_50(budget: Budget) -> Self {
        Self::kvmerger(budget).with_name("kvmerger-50")
    }

    /// KVMerger as the paper runs it at 35 % of the context. 8 % of the context are the last tokens
    /// and 2 % those with the most accumulated attention, so 8 / 35 and 2 / 35 of the kept tokens.
    pub fn kvmerger_35(budget: Budget) -> Self {
        Self::kvmerger_with("kvmerger-35", budget, 8.0 / 35.0, 2.0 / 35.0)
    }

    fn kvmerger_with(name: &str, budget: Budget, recent: f64, protect: f64) -> Self {
        Self::h2o(budget)
            .with_name(name)
            .with_recent(Recent::Share(recent))
            .with_reducer(GaussianMerge { protect, ..GaussianMerge::default() })
            .with_schedule(Schedule::always(64))
    }

    /// D2O (Wan et al., 2024): the tokens with the most accumulated attention, 4 sinks, and a
    /// quarter of the remaining budget for the last tokens. Layer budgets follow the density of
    /// each layer's attention, and evicted tokens are merged into the most similar kept ones.
    pub fn d2o(budget: Budget) -> Self {
        Self::h2o(budget)
            .with_name("d2o")
            .with_sinks(4)
            .with_recent(Recent::HeavyToRecent(3, 1))
            .with_allocator(VarianceShare { share: Share::Softmax, normalize: true })
            .with_reducer(EmaMerge::default())
    }

    /// EMS: the Global-Local score over a window of 32, pooled over 7 tokens, and evict-then-merge
    /// with γ = 4 and τ = 0.6, on keys without positions. Tokens share entries.
    pub fn ems(budget: Budget) -> Self {
        Self::custom("ems", budget, Ems::default())
            .with_recent(Recent::Tokens(32))
            .with_reducer(EvictThenMerge::default())
            .with_positions(PositionMode::Deferred)
    }

    /// EMS with the paper's settings for needle tests: a window of 16. τ is 0.6, from its appendix
    /// D; its section 5.3 says 0.55.
    pub fn ems_needle(budget: Budget) -> Self {
        Self::ems(budget).with_name("ems-needle").with_window(16)
    }
}
