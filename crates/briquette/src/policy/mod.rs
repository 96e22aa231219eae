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
    CacheShape, Error, Result,
    allocate::{Allocator, AllocatorSpec},
    cache::store::{StoreBuilder, StoreSpec},
    reduce::{Reducer, ReducerSpec},
    score::{AccumulatedAttention, Normalize, Pool, Scorer, ScorerSpec, WindowAttention},
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

    /// Another scorer, of this crate or of a user's own.
    pub fn with_scorer(mut self, scorer: impl Scorer + 'static) -> Self {
        self.score = Stage::Custom(Arc::new(scorer));
        self
    }

    /// Another allocator.
    pub fn with_allocator(mut self, allocator: impl Allocator + 'static) -> Self {
        self.allocate = Stage::Custom(Arc::new(allocator));
        self
    }

    /// Another reducer.
    pub fn with_reducer(mut self, reducer: impl Reducer + 'static) -> Self {
        self.reduce = Stage::Custom(Arc::new(reducer));
        self
    }

    /// Another store.
    pub fn with_store(mut self, store: impl StoreBuilder + 'static) -> Self {
        self.store = Stage::Custom(Arc::new(store));
        self
    }

    /// Checks every parameter. [`KvCache::new`](crate::KvCache::new) does so too.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] or [`Error::BudgetTooSmall`].
    pub fn check(&self) -> Result<()> {
        self.protect.check()?;
        self.scorer().check()?;
        self.allocator().check()?;
        self.reducer().check()?;
        if self.schedule.decode_every == Some(0) {
            return Err(Error::InvalidParameter {
                parameter: "schedule.decode-every",
                value: "0".into(),
                must_be: "at least 1".into(),
            });
        }
        let Some(budget) = self.budget else { return Ok(()) };
        budget.check()?;
        if let Budget::Tokens(tokens) = budget {
            self.check_tokens(budget, tokens)?;
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

    /// The budget in tokens, one number a batch row; `None` keeps everything.
    pub(crate) fn resolve(
        &self,
        shape: CacheShape,
        seen: &[usize],
        footprint: Footprint,
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
                let columns = layer.saturating_sub(footprint.fixed) / footprint.column.max(1);
                let tokens = columns.saturating_sub(self.slack());
                if tokens == 0 {
                    let columns = self.protect.least().max(1).saturating_add(self.slack());
                    let layer = columns.saturating_mul(footprint.column);
                    let least = layer.saturating_add(footprint.fixed).saturating_mul(shape.layers);
                    return Err(Error::BytesTooFew { bytes, rows: seen.len(), least });
                }
                self.check_tokens(budget, tokens)?;
                Some(vec![tokens; seen.len()])
            }
        })
    }
}

/// Bytes a layer takes, for the whole batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Footprint {
    /// Whatever the number of entries.
    pub(crate) fixed: usize,
    /// For each column of entries.
    pub(crate) column: usize,
}
