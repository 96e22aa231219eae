//! A policy: one composition of the four stages, when it runs, and what it never drops.
//!
//! A paper's name is a named composition and nothing more; [`methods`] is the table of them.

mod budget;
mod file;
mod methods;
mod protect;
mod schedule;

use std::{path::Path, sync::Arc};

use serde::{Deserialize, Serialize};

pub use budget::Budget;
pub use methods::{MethodInfo, methods};
pub use protect::{Protect, Recent};
pub use schedule::{PrefillCompression, Schedule};

use crate::{
    CacheShape, Error, Profile, Result,
    allocate::{Allocator, AllocatorSpec},
    cache::store::{Ragged, Shared, StoreBuilder, StoreSpec},
    check,
    reduce::{Reducer, ReducerSpec},
    score::{AccumulatedAttention, Normalize, Observes, Pool, Scorer, ScorerSpec, WindowAttention},
};

/// A stage that has a file form, or one from a user's own crate.
#[derive(Debug)]
pub(crate) enum Stage<S, T: ?Sized> {
    Named(S),
    Custom(Arc<T>),
}

impl<S: Clone, T: ?Sized> Clone for Stage<S, T> {
    fn clone(&self) -> Self {
        match self {
            Self::Named(spec) => Self::Named(spec.clone()),
            Self::Custom(stage) => Self::Custom(stage.clone()),
        }
    }
}

/// At which positions a cache encodes the entries it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PositionMode {
    /// At the positions they were written at. Keys are held encoded.
    #[default]
    Written,
    /// Counted 0, 1, 2 … over the entries held, as StreamingLLM does. Keys are held as they came and encoded
    /// in every call.
    InCache,
    /// At the positions they were written at, but in every call: keys are held as they came, so that they can be
    /// compared and merged without their positions (EMS, "without position").
    Deferred,
}

/// What a cache keeps: score, allocate, reduce and store, composed.
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
    name: String,
    budget: Option<Budget>,
    score: Stage<ScorerSpec, dyn Scorer>,
    protect: Protect,
    allocate: Stage<AllocatorSpec, dyn Allocator>,
    reduce: Stage<ReducerSpec, dyn Reducer>,
    store: Stage<StoreSpec, dyn StoreBuilder>,
    schedule: Schedule,
    positions: PositionMode,
    profile: Option<Arc<Profile>>,
}

impl Policy {
    /// A policy that keeps the highest `score`s of every kv head: uniform allocation, eviction, a dense
    /// store, compression after the prompt and after every decoded token. The start of a custom policy.
    pub fn custom(name: &str, budget: Budget, scorer: impl Scorer + 'static) -> Self {
        Self::evicting(name, budget, Stage::Custom(Arc::new(scorer)))
    }

    fn evicting(name: &str, budget: Budget, score: Stage<ScorerSpec, dyn Scorer>) -> Self {
        Self {
            name: name.to_owned(),
            budget: Some(budget),
            score,
            protect: Protect::default(),
            allocate: Stage::Named(AllocatorSpec::default()),
            reduce: Stage::Named(ReducerSpec::default()),
            store: Stage::Named(StoreSpec::default()),
            schedule: Schedule::always(1),
            positions: PositionMode::Written,
            profile: None,
        }
    }

    /// The named method with this budget.
    ///
    /// # Errors
    /// [`Error::UnknownMethod`], which lists the names; or the method's own check of the budget.
    pub fn named(name: &str, budget: Budget) -> Result<Self> {
        let policy = methods::build(name, budget)?;
        policy.check()?;
        Ok(policy)
    }

    /// Reads a policy file, TOML or JSON by its ending.
    ///
    /// # Errors
    /// [`Error::PolicyFile`] with what is wrong and where, or the check of a parameter.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        file::read(path.as_ref())
    }

    /// Reads a policy from TOML. See [`from_file`](Self::from_file).
    ///
    /// # Errors
    /// [`Error::PolicyFile`], or the check of a parameter.
    pub fn from_toml(text: &str) -> Result<Self> {
        file::parse(text, file::Format::Toml, "TOML")
    }

    /// Reads a policy from JSON. See [`from_file`](Self::from_file).
    ///
    /// # Errors
    /// [`Error::PolicyFile`], or the check of a parameter.
    pub fn from_json(text: &str) -> Result<Self> {
        file::parse(text, file::Format::Json, "JSON")
    }

    /// The policy as TOML.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] if a stage is custom.
    pub fn to_toml(&self) -> Result<String> {
        file::write(self, file::Format::Toml)
    }

    /// The policy as JSON.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] if a stage is custom.
    pub fn to_json(&self) -> Result<String> {
        file::write(self, file::Format::Json)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its budget; `None` keeps everything.
    pub fn budget(&self) -> Option<Budget> {
        self.budget
    }

    /// What it keeps whatever the scores.
    pub fn protect(&self) -> Protect {
        self.protect
    }

    /// When it compresses.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// At which positions entries are encoded.
    pub fn positions(&self) -> PositionMode {
        self.positions
    }

    /// What was measured of the model, if it was given.
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_deref()
    }

    /// Whether a stage reads a profile of the model.
    pub fn reads_profile(&self) -> bool {
        self.scorer().reads_profile() || self.allocator().reads_profile()
    }

    /// What its stages want to know of the attention.
    pub fn observes(&self) -> Observes {
        let scorer = self.scorer().observes();
        scorer.and(self.allocator().observes()).and(self.reducer().observes())
    }

    /// Its first stage.
    pub fn scorer(&self) -> &dyn Scorer {
        match &self.score {
            Stage::Named(spec) => spec.scorer(),
            Stage::Custom(scorer) => scorer.as_ref(),
        }
    }

    /// Its second stage.
    pub fn allocator(&self) -> &dyn Allocator {
        match &self.allocate {
            Stage::Named(spec) => spec.allocator(),
            Stage::Custom(allocator) => allocator.as_ref(),
        }
    }

    /// Its third stage.
    pub fn reducer(&self) -> &dyn Reducer {
        match &self.reduce {
            Stage::Named(spec) => spec.reducer(),
            Stage::Custom(reducer) => reducer.as_ref(),
        }
    }

    /// Its fourth stage.
    pub fn store(&self) -> &dyn StoreBuilder {
        match &self.store {
            Stage::Named(spec) => spec,
            Stage::Custom(store) => store.as_ref(),
        }
    }

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

    /// Another window for a [`WindowAttention`] scorer, which is also what is kept of the last tokens. Any
    /// other policy is unchanged.
    pub fn with_window(mut self, window: usize) -> Self {
        if let Stage::Named(ScorerSpec::WindowAttention(scorer)) = &mut self.score {
            scorer.window = window;
            self.protect.recent = Recent::Tokens(window);
        }
        self
    }

    /// Another pooling for a [`WindowAttention`] scorer. Any other policy is unchanged.
    pub fn with_pool(mut self, pool: Pool) -> Self {
        if let Stage::Named(ScorerSpec::WindowAttention(scorer)) = &mut self.score {
            scorer.pool = Some(pool);
        }
        self
    }

    /// Another normalisation for an [`AccumulatedAttention`] scorer. Any other policy is unchanged.
    pub fn with_normalize(mut self, normalize: Normalize) -> Self {
        if let Stage::Named(ScorerSpec::AccumulatedAttention(scorer)) = &mut self.score {
            scorer.normalize = normalize;
        }
        self
    }

    /// The profile of the model it is for.
    pub fn with_profile(mut self, profile: Arc<Profile>) -> Self {
        self.profile = Some(profile);
        self
    }

    /// Another scorer of this crate.
    pub fn with_score(mut self, score: impl Into<ScorerSpec>) -> Self {
        self.score = Stage::Named(score.into());
        self
    }

    /// Another allocator of this crate. Budgets a head, or a row of a batch, want a store that holds different
    /// lengths: a dense one becomes [`Ragged`].
    pub fn with_allocate(mut self, allocate: impl Into<AllocatorSpec>) -> Self {
        self.allocate = Stage::Named(allocate.into());
        self.fit_store()
    }

    /// Another reducer of this crate. If heads may end with different lengths, or tokens share entries, a dense
    /// store becomes one that holds them.
    pub fn with_reduce(mut self, reduce: impl Into<ReducerSpec>) -> Self {
        self.reduce = Stage::Named(reduce.into());
        self.fit_store()
    }

    /// Another store of this crate.
    pub fn with_store(mut self, store: impl Into<StoreSpec>) -> Self {
        self.store = Stage::Named(store.into());
        self
    }

    fn fit_store(mut self) -> Self {
        let dense = matches!(self.store, Stage::Named(StoreSpec::Dense(_)));
        if dense && self.reducer().makes_shared_entries() {
            self.store = Stage::Named(StoreSpec::Shared(Shared {}));
        } else if dense && (self.makes_ragged_heads() || self.allocator().measures()) {
            self.store = Stage::Named(StoreSpec::Ragged(Ragged {}));
        }
        self
    }

    /// Whether heads of a layer may hold different numbers of entries.
    pub fn makes_ragged_heads(&self) -> bool {
        self.allocator().allocates_heads() || self.reducer().makes_ragged_heads()
    }

    /// Another scorer, of a user's own.
    pub fn with_scorer(mut self, scorer: impl Scorer + 'static) -> Self {
        self.score = Stage::Custom(Arc::new(scorer));
        self
    }

    /// Another allocator, of a user's own.
    pub fn with_allocator(mut self, allocator: impl Allocator + 'static) -> Self {
        self.allocate = Stage::Custom(Arc::new(allocator));
        self.fit_store()
    }

    /// Another reducer, of a user's own.
    pub fn with_reducer(mut self, reducer: impl Reducer + 'static) -> Self {
        self.reduce = Stage::Custom(Arc::new(reducer));
        self.fit_store()
    }

    /// Another store, of a user's own.
    pub fn with_store_builder(mut self, store: impl StoreBuilder + 'static) -> Self {
        self.store = Stage::Custom(Arc::new(store));
        self
    }

    /// Checks every parameter. [`KvCache::new`](crate::KvCache::new) does so too.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`], [`Error::BudgetTooSmall`], [`Error::MergeBudget`], or
    /// [`Error::StoreMismatch`].
    pub fn check(&self) -> Result<()> {
        self.protect.check()?;
        self.scorer().check()?;
        self.allocator().check()?;
        self.reducer().check()?;
        self.store().check()?;
        self.check_store()?;
        if let Some(every) = self.schedule.decode_every {
            check::count("schedule.decode-every", every)?;
        }
        let Some(budget) = self.budget else { return Ok(()) };
        budget.check()?;
        if let Budget::Tokens(tokens) = budget {
            self.check_tokens(budget, tokens)?;
        }
        self.reducer().check_budget(budget, self.protect)
    }

    /// A store that pads heads to the longest, or holds a copy for each token, would take the memory that the other
    /// stages have freed.
    fn check_store(&self) -> Result<()> {
        let store = self.store();
        let fail = |stage: &str, needs| {
            let (stage, store) = (stage.to_owned(), store.name().to_owned());
            Err(Error::StoreMismatch { policy: self.name.clone(), stage, needs, store })
        };
        if self.allocator().allocates_heads() && !store.holds_ragged_heads() {
            return fail(self.allocator().name(), "heads of different lengths");
        }
        if self.reducer().makes_ragged_heads() && !store.holds_ragged_heads() {
            return fail(self.reducer().name(), "heads of different lengths");
        }
        if self.reducer().makes_shared_entries() && !store.holds_shared_entries() {
            return fail(self.reducer().name(), "entries that tokens share");
        }
        Ok(())
    }

    /// Checks that it can serve a cache of this shape: its store, and the profile it reads.
    ///
    /// # Errors
    /// [`Error::ProfileMissing`], [`Error::ProfileShape`], [`Error::InvalidProfile`] or
    /// [`Error::InvalidParameter`].
    pub fn check_shape(&self, shape: CacheShape) -> Result<()> {
        self.store().check_shape(shape)?;
        if let Some(profile) = self.profile() {
            profile.check()?;
            return profile.check_shape(shape);
        }
        let missing = |stage, name: &str| {
            let (policy, name) = (self.name.clone(), name.to_owned());
            Err(Error::ProfileMissing { policy, stage, name })
        };
        if self.scorer().reads_profile() {
            return missing("scorer", self.scorer().name());
        }
        if self.allocator().reads_profile() {
            return missing("allocator", self.allocator().name());
        }
        Ok(())
    }

    fn check_tokens(&self, budget: Budget, tokens: usize) -> Result<()> {
        let Protect { sinks, recent } = self.protect;
        let recent = recent.tokens(tokens);
        if sinks.saturating_add(recent) > tokens {
            return Err(Error::BudgetTooSmall { budget, tokens, sinks, recent });
        }
        Ok(())
    }

    /// Columns a layer may hold above its budget before it is compressed again; where decoding compresses nothing,
    /// or the budget grows with it, those it makes room for at a time.
    pub(crate) fn slack(&self) -> usize {
        const GROWTH: usize = 64;
        match (self.schedule.decode_every, self.budget) {
            (Some(every), Some(Budget::Ratio(_))) => every.max(GROWTH),
            (Some(every), _) => every,
            (None, _) => GROWTH,
        }
    }

    /// The budget in tokens, one number a batch row; `None` keeps everything. `bytes_of` says what a layer takes for
    /// so many entries and columns.
    pub(crate) fn resolve(
        &self,
        shape: CacheShape,
        seen: &[usize],
        bytes_of: &dyn Fn(usize, usize) -> usize,
    ) -> Result<Option<Vec<usize>>> {
        Ok(match self.budget {
            None => None,
            Some(Budget::Tokens(tokens)) => Some(vec![tokens; seen.len()]),
            Some(Budget::Ratio(ratio)) => {
                let least = self.protect.least().max(1);
                let kept = |&seen: &usize| ((seen as f64 * ratio) as usize).max(least);
                Some(seen.iter().map(kept).collect())
            }
            Some(budget @ Budget::Bytes(bytes)) => {
                let layer = usize::try_from(bytes).unwrap_or(usize::MAX) / shape.layers;
                let slack = self.slack();
                let needs = |tokens: usize| {
                    let columns = self.reducer().columns(tokens).saturating_add(slack);
                    bytes_of(tokens.saturating_add(slack), columns)
                };
                let least = self.protect.least().max(1);
                if needs(1) > layer {
                    let least = needs(least).saturating_mul(shape.layers);
                    return Err(Error::BytesTooFew { bytes, rows: seen.len(), least });
                }
                // The most tokens that fit: bytes grow with them.
                let (mut fits, mut too_many) = (1, layer + 1);
                while fits + 1 < too_many {
                    let middle = fits + (too_many - fits) / 2;
                    if needs(middle) <= layer { fits = middle } else { too_many = middle }
                }
                self.check_tokens(budget, fits)?;
                self.reducer().check_budget(Budget::Tokens(fits), self.protect)?;
                Some(vec![fits; seen.len()])
            }
        })
    }
}
