//! Another of what a policy is made of.

use std::sync::Arc;

use super::{Policy, PositionMode, Schedule, SparsePrefill, policy::Mismatch};
use crate::{
    Profile,
    allocate::{Allocator, AllocatorSpec},
    budget::{Budget, Recent},
    reduce::Reducer,
    score::{Normalize, Pool, Scorer, ScorerSpec},
    store::{Ragged, Shared, StoreBuilder, StoreSpec},
};

impl Policy {
    /// Another name.
    pub fn with_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Another budget. A policy that keeps everything stays so.
    pub fn with_budget(mut self, budget: Budget) -> Self {
        if self.budget.is_some() {
            self.budget = Some(budget);
        }
        self
    }

    /// Other times to compress.
    pub fn with_schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Other positions.
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

    /// The profile of the model it is for.
    pub fn with_profile(mut self, profile: Arc<Profile>) -> Self {
        self.profile = Some(profile);
        self
    }

    /// Attention over prompts that computes a part of its weights.
    pub fn with_sparse_prefill(mut self, prefill: SparsePrefill) -> Self {
        self.sparse_prefill = Some(prefill);
        self
    }

    /// Another scorer, built in or one's own.
    pub fn with_score(mut self, score: impl Scorer) -> Self {
        self.score = Arc::new(score);
        self
    }

    /// Another allocator, built in or one's own. Budgets a head, or a row of a batch, want a store that holds different
    /// lengths: a dense one becomes [`Ragged`].
    pub fn with_allocate(mut self, allocate: impl Allocator) -> Self {
        self.allocate = Arc::new(allocate);
        self.fit_store()
    }

    /// Another reducer, built in or one's own. If heads may end with different lengths, or tokens share entries, a dense
    /// store becomes one that holds them.
    pub fn with_reduce(mut self, reduce: impl Reducer) -> Self {
        self.reduce = Arc::new(reduce);
        self.fit_store()
    }

    /// Another store, built in or one's own.
    pub fn with_store(mut self, store: impl StoreBuilder) -> Self {
        self.store = Arc::new(store);
        self
    }

    fn fit_store(mut self) -> Self {
        let dense = matches!(StoreSpec::of(self.store()), Some(StoreSpec::Dense(_)));
        if dense && self.reducer().makes_shared_entries() {
            self.store = Arc::new(Shared {});
        } else if dense && (self.makes_ragged_heads() || self.allocator().measures()) {
            self.store = Arc::new(Ragged {});
        }
        self
    }

    /// Another window of queries, for every stage that looks at one, which is also what is kept of the last tokens.
    ///
    /// Scorer and allocator must be such that one of them has a window: else [`check`](Self::check) says
    /// [`Error::SetterMismatch`](crate::Error::SetterMismatch).
    pub fn with_window(self, window: usize) -> Self {
        let mut policy = self.with_parameter("with_window", |score, allocate| {
            let scorer = match score {
                Some(ScorerSpec::WindowAttention(scorer)) => Some(&mut scorer.window),
                Some(ScorerSpec::DropError(scorer)) => Some(&mut scorer.window),
                Some(ScorerSpec::QuestionAttention(scorer)) => Some(&mut scorer.window),
                Some(ScorerSpec::WindowVariance(scorer)) => Some(&mut scorer.window),
                Some(ScorerSpec::GlobalLocal(scorer)) => Some(&mut scorer.window),
                _ => None,
            };
            let allocator = match allocate {
                Some(AllocatorSpec::Preference(allocator)) => Some(&mut allocator.window),
                Some(AllocatorSpec::HeadAdaptive(allocator)) => {
                    allocator.by.as_mut().map(|by| &mut by.window)
                }
                _ => None,
            };
            set([scorer, allocator], window)
        });
        if policy.mismatch.is_none() {
            policy.protect.recent = Recent::Tokens(window);
        }
        policy
    }

    /// Another pooling of the scores along the tokens, for every stage that pools.
    ///
    /// Scorer and allocator must be such that one of them can: else [`check`](Self::check) says
    /// [`Error::SetterMismatch`](crate::Error::SetterMismatch).
    pub fn with_pool(self, pool: Pool) -> Self {
        self.with_parameter("with_pool", |score, allocate| {
            let scorer = match score {
                Some(ScorerSpec::WindowAttention(scorer)) => Some(&mut scorer.pool),
                Some(ScorerSpec::DropError(scorer)) => Some(&mut scorer.pool),
                Some(ScorerSpec::WindowVariance(scorer)) => Some(&mut scorer.pool),
                Some(ScorerSpec::GlobalLocal(scorer)) => Some(&mut scorer.pool),
                _ => None,
            };
            let allocator = match allocate {
                Some(AllocatorSpec::HeadAdaptive(allocator)) => {
                    allocator.by.as_mut().map(|by| &mut by.pool)
                }
                _ => None,
            };
            set([scorer, allocator], Some(pool))
        })
    }

    /// Another normalisation of accumulated attention.
    ///
    /// The scorer must be [`AccumulatedAttention`](crate::score::AccumulatedAttention): else [`check`](Self::check) says
    /// [`Error::SetterMismatch`](crate::Error::SetterMismatch).
    pub fn with_normalize(self, normalize: Normalize) -> Self {
        self.with_parameter("with_normalize", |score, _| {
            let scorer = match score {
                Some(ScorerSpec::AccumulatedAttention(scorer)) => Some(&mut scorer.normalize),
                _ => None,
            };
            set([scorer], normalize)
        })
    }

    /// Changes a parameter of built-in stages. `change` says whether one of them has it.
    fn with_parameter(
        mut self,
        setter: &'static str,
        change: impl FnOnce(&mut Option<ScorerSpec>, &mut Option<AllocatorSpec>) -> bool,
    ) -> Self {
        let mut score = ScorerSpec::of(self.scorer());
        let mut allocate = AllocatorSpec::of(self.allocator());
        if !change(&mut score, &mut allocate) {
            let (scorer, allocator) = (self.scorer().summary(), self.allocator().summary());
            let has = format!("the scorer `{scorer}` and the allocator `{allocator}`");
            self.mismatch.get_or_insert(Mismatch { setter, has });
            return self;
        }
        self.score = score.map_or(self.score, ScorerSpec::stage);
        self.allocate = allocate.map_or(self.allocate, AllocatorSpec::stage);
        self
    }
}

/// Sets a parameter where it is. Whether it is anywhere.
fn set<T: Clone, const N: usize>(places: [Option<&mut T>; N], value: T) -> bool {
    let found = places.iter().any(Option::is_some);
    places.into_iter().flatten().for_each(|place| *place = value.clone());
    found
}
