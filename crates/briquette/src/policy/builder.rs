//! Builder methods of [`Policy`].

use std::sync::Arc;

use super::{Policy, PositionMode, Schedule, SparsePrefill, policy::Mismatch};
use crate::{
    Profile,
    allocate::Allocator,
    budget::{Budget, Recent},
    reduce::Reducer,
    score::{AccumulatedAttention, Normalize, Pool, Scorer, ScorerSpec},
    store::{Clustered, Ragged, StoreBuilder, StoreSpec},
};

impl Policy {
    /// Sets the name.
    pub fn with_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Sets the budget.
    ///
    /// The policy must [take one](Self::takes_budget): otherwise [`check`](Self::check) returns
    /// [`Error::BudgetUnused`](crate::Error::BudgetUnused).
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Sets the budget if the policy [takes one](Self::takes_budget) and has none.
    pub fn with_default_budget(mut self, budget: Budget) -> Self {
        if self.takes_budget() {
            self.budget.get_or_insert(budget);
        }
        self
    }

    /// Sets when the policy compresses.
    pub fn with_schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Sets the positions at which entries are encoded.
    pub fn with_positions(mut self, positions: PositionMode) -> Self {
        self.positions = positions;
        self
    }

    /// Protects the first `sinks` tokens.
    pub fn with_sinks(mut self, sinks: usize) -> Self {
        self.protect.sinks = sinks;
        self
    }

    /// Protects the last tokens.
    pub fn with_recent(mut self, recent: Recent) -> Self {
        self.protect.recent = recent;
        self
    }

    /// Sets the profile of the model.
    pub fn with_profile(mut self, profile: Arc<Profile>) -> Self {
        self.profile = Some(profile);
        self
    }

    /// Makes attention over prompts sparse, so that it computes only a part of its weights.
    pub fn with_sparse_prefill(mut self, prefill: SparsePrefill) -> Self {
        self.sparse_prefill = Some(prefill);
        self
    }

    /// Sets the scorer, built in or custom.
    pub fn with_scorer(mut self, score: impl Scorer) -> Self {
        self.score = Arc::new(score);
        self
    }

    /// Sets the allocator, built in or custom. Budgets per head, or per batch row, need a store
    /// that holds different lengths: a dense one becomes [`Ragged`].
    pub fn with_allocator(mut self, allocate: impl Allocator) -> Self {
        self.allocate = Arc::new(allocate);
        self.fit_store()
    }

    /// Sets the reducer, built in or custom. If heads may end with different lengths, or tokens
    /// share entries, a dense store becomes one that holds them.
    pub fn with_reducer(mut self, reduce: impl Reducer) -> Self {
        self.reduce = Arc::new(reduce);
        self.fit_store()
    }

    /// Sets the store, built in or custom.
    pub fn with_store(mut self, store: impl StoreBuilder) -> Self {
        self.store = Arc::new(store);
        self
    }

    fn fit_store(mut self) -> Self {
        let dense = matches!(StoreSpec::of(self.store()), Some(StoreSpec::Dense(_)));
        if dense && self.reducer().makes_clusters() {
            self.store = Arc::new(Clustered {});
        } else if dense && (self.makes_ragged_heads() || self.allocator().measures()) {
            self.store = Arc::new(Ragged {});
        }
        self
    }

    /// Sets the window of queries of every stage that has one, and the number of last tokens that
    /// are kept.
    ///
    /// Scorer or allocator must have a window: otherwise [`check`](Self::check) returns
    /// [`Error::SetterMismatch`](crate::Error::SetterMismatch).
    pub fn with_window(self, window: usize) -> Self {
        let score = self.scorer().with_window(window);
        let allocate = self.allocator().with_window(window);
        let mut policy = self.with_parameter("with_window", score, allocate);
        if policy.mismatch.is_none() {
            policy.protect.recent = Recent::Tokens(window);
        }
        policy
    }

    /// Sets the pooling of the scores along the tokens, for every stage that pools.
    ///
    /// Scorer or allocator must pool: otherwise [`check`](Self::check) returns
    /// [`Error::SetterMismatch`](crate::Error::SetterMismatch).
    pub fn with_pool(self, pool: Pool) -> Self {
        let score = self.scorer().with_pool(pool);
        let allocate = self.allocator().with_pool(pool);
        self.with_parameter("with_pool", score, allocate)
    }

    /// Sets the normalisation of accumulated attention.
    ///
    /// The scorer must be [`AccumulatedAttention`]: otherwise [`check`](Self::check) returns
    /// [`Error::SetterMismatch`](crate::Error::SetterMismatch).
    pub fn with_normalize(self, normalize: Normalize) -> Self {
        let spec = ScorerSpec::of(self.scorer());
        let applies = matches!(spec, Some(ScorerSpec::AccumulatedAttention(_)));
        let score = || -> Arc<dyn Scorer> { Arc::new(AccumulatedAttention { normalize }) };
        self.with_parameter("with_normalize", applies.then(score), None)
    }

    /// Replaces the stages that have the parameter of a setter. If no stage has it, the policy
    /// records the setter as a mistake.
    fn with_parameter(
        mut self,
        setter: &'static str,
        score: Option<Arc<dyn Scorer>>,
        allocate: Option<Arc<dyn Allocator>>,
    ) -> Self {
        if score.is_none() && allocate.is_none() {
            let (scorer, allocator) = (self.scorer().summary(), self.allocator().summary());
            let has = format!("the scorer `{scorer}` and the allocator `{allocator}`");
            self.mismatch.get_or_insert(Mismatch { setter, has });
        }
        self.score = score.unwrap_or(self.score);
        self.allocate = allocate.unwrap_or(self.allocate);
        self
    }
}
