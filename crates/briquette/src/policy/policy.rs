use std::sync::Arc;

use super::{PositionMode, Schedule, SparsePrefill};
use crate::{
    Profile,
    allocate::{Allocator, AllocatorSpec},
    budget::{Budget, Protect},
    reduce::{Reducer, ReducerSpec},
    score::Scorer,
    stage::{AttentionRequest, Repeat},
    store::{StoreBuilder, StoreSpec},
};

/// Composition of score, allocate, reduce and store: it decides which entries a cache keeps.
///
/// ```
/// use briquette::{Budget, Policy, Schedule, score::Pool};
///
/// // A named method, changed where the paper leaves a choice open.
/// let policy = Policy::snapkv(Budget::Tokens(256))
///     .with_pool(Pool::max(7))
///     .with_schedule(Schedule::always(32));
/// // The same as a file.
/// let text = policy.to_toml().unwrap();
/// assert_eq!(Policy::from_toml(&text).unwrap().to_toml().unwrap(), text);
/// ```
#[derive(Clone, Debug)]
pub struct Policy {
    pub(super) name: String,
    pub(super) budget: Option<Budget>,
    pub(super) score: Arc<dyn Scorer>,
    pub(super) protect: Protect,
    pub(super) allocate: Arc<dyn Allocator>,
    pub(super) reduce: Arc<dyn Reducer>,
    pub(super) store: Arc<dyn StoreBuilder>,
    pub(super) schedule: Schedule,
    pub(super) positions: PositionMode,
    pub(super) profile: Option<Arc<Profile>>,
    pub(super) sparse_prefill: Option<SparsePrefill>,
    /// First setter that did not apply to the policy.
    pub(super) mismatch: Option<Mismatch>,
}

/// Setter of a parameter that the policy does not have.
#[derive(Clone, Debug)]
pub(super) struct Mismatch {
    pub(super) setter: &'static str,
    /// Stages of the policy, with their parameters.
    pub(super) has: String,
}

impl Policy {
    /// Creates a policy that keeps the highest `score`s of every kv head: uniform allocation,
    /// eviction, a dense store, compression after the prompt and after every decoded token. The
    /// start of a custom policy.
    pub fn custom(name: &str, budget: Budget, score: impl Scorer) -> Self {
        Self {
            name: name.to_owned(),
            budget: Some(budget),
            score: Arc::new(score),
            protect: Protect::default(),
            allocate: AllocatorSpec::default().stage().into(),
            reduce: ReducerSpec::default().stage().into(),
            store: StoreSpec::default().stage().into(),
            schedule: Schedule::always(1),
            positions: PositionMode::Written,
            profile: None,
            sparse_prefill: None,
            mismatch: None,
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its budget; `None` if it keeps everything, or has no budget yet.
    pub fn budget(&self) -> Option<Budget> {
        self.budget
    }

    /// Whether it takes a budget, because its schedule compresses. No cache accepts such a policy
    /// without one. A policy that never compresses ([`full`](Self::full), [`kivi`](Self::kivi),
    /// [`fp8`](Self::fp8)) keeps everything and takes none.
    pub fn takes_budget(&self) -> bool {
        self.schedule.compresses()
    }

    /// Returns the entries it keeps whatever their scores.
    pub fn protect(&self) -> Protect {
        self.protect
    }

    /// Returns when it compresses.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Returns the positions at which entries are encoded.
    pub fn positions(&self) -> PositionMode {
        self.positions
    }

    /// Returns the profile of the model, if it has one.
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_deref()
    }

    /// Returns the sparse attention over prompts; `None` if it computes all weights.
    pub fn sparse_prefill(&self) -> Option<&SparsePrefill> {
        self.sparse_prefill.as_ref()
    }

    /// Whether a stage reads a profile of the model.
    pub fn reads_profile(&self) -> bool {
        let sparse = self.sparse_prefill().is_some_and(SparsePrefill::reads_profile);
        sparse || self.scorer().reads_profile() || self.allocator().reads_profile()
    }

    /// Whether its scorer reads the model's [output
    /// projections](crate::CacheConfig::with_output_weights).
    pub fn reads_output_weights(&self) -> bool {
        self.scorer().reads_output_weights()
    }

    /// Returns what its stages need from the attention pass.
    pub fn observes(&self) -> AttentionRequest {
        let scorer = self.scorer().observes();
        let stages = scorer.and(self.allocator().observes()).and(self.reducer().observes());
        stages.and(AttentionRequest::window(self.store().window()))
    }

    /// Returns why it needs queries or keys before they are rotated; `None` if a model may rotate
    /// them itself ([`Rotated`](crate::position::Rotated)).
    pub fn needs_unrotated(&self) -> Option<&'static str> {
        let observes = self.observes();
        match self.positions {
            PositionMode::InCache => Some("counts the positions of its entries anew in every call"),
            PositionMode::Deferred => Some("compares keys before they are rotated"),
            PositionMode::Written if observes.queries => {
                Some("looks at queries before they are rotated")
            }
            PositionMode::Written if observes.ahead => Some("rotates queries to positions to come"),
            PositionMode::Written => None,
        }
    }

    /// Returns how the model repeats the prompt in a [second pass](crate::KvCache::reconstruction),
    /// if the policy compresses by one; `None` if one pass is enough. A token decoded before it is
    /// refused ([`Error::SecondPassMissing`](crate::Error::SecondPassMissing)).
    pub fn second_pass(&self) -> Option<Repeat> {
        self.observes().second_pass
    }

    /// Whether a cache refuses decoded tokens before a second pass over the prompt.
    pub(crate) fn waits_for_second_pass(&self) -> bool {
        self.takes_budget() && self.second_pass().is_some()
    }

    /// Whether every decode step of its stages launches the same kernels, so that it can be
    /// captured and replayed.
    pub fn is_capturable(&self) -> bool {
        let stages = || {
            !self.scorer().depends_on().host
                && self.allocator().is_capturable()
                && self.reducer().is_capturable()
        };
        self.schedule.decode_every.is_none() || stages()
    }

    /// Whether it has a budget and compresses down to it: SimLayerKV keeps whole layers beyond its
    /// budget, and KIVI and FP8 have none.
    pub fn holds_budget(&self) -> bool {
        self.budget.is_some() && self.allocator().holds_budget()
    }

    /// Returns its first stage.
    pub fn scorer(&self) -> &dyn Scorer {
        self.score.as_ref()
    }

    /// Returns its second stage.
    pub fn allocator(&self) -> &dyn Allocator {
        self.allocate.as_ref()
    }

    /// Returns its third stage.
    pub fn reducer(&self) -> &dyn Reducer {
        self.reduce.as_ref()
    }

    /// Returns its fourth stage.
    pub fn store(&self) -> &dyn StoreBuilder {
        self.store.as_ref()
    }

    /// Whether heads of a layer may hold different numbers of entries.
    pub fn makes_ragged_heads(&self) -> bool {
        self.allocator().allocates_heads() || self.reducer().makes_ragged_heads()
    }
}
