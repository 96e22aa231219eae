//! Stage two: how many entries a layer, or a head, may keep.

mod apportion;
mod error_aware;
mod head_adaptive;
mod head_profile;
mod preference;
mod pyramid;
mod uniform;
mod variance_share;

use std::{cell::OnceCell, fmt::Debug};

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

pub use error_aware::ErrorAware;
pub use head_adaptive::HeadAdaptive;
pub use head_profile::HeadProfile;
pub use preference::Preference;
pub use pyramid::Pyramid;
pub use uniform::Uniform;
pub use variance_share::{Share, VarianceShare};

use crate::{
    CacheShape, Error, Profile, Result,
    policy::Protect,
    score::{Observes, ScoreInput, Scorer},
};

/// Shares a budget out over layers and, with stores that hold heads of different lengths, heads.
pub trait Allocator: Debug + Send + Sync {
    /// The name used in tables and errors.
    fn name(&self) -> &str;

    /// The name and the parameters that matter, for tables.
    fn summary(&self) -> String {
        self.name().to_owned()
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`].
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// What the attention pass must report for it, besides what the scorer wants.
    fn observes(&self) -> Observes {
        Observes::nothing()
    }

    /// Whether it reads a [`Profile`] of the model.
    fn reads_profile(&self) -> bool {
        false
    }

    /// Whether heads of a layer may get different numbers.
    fn allocates_heads(&self) -> bool {
        false
    }

    /// Whether budgets depend on what is [measured](Self::measure) of other layers. Layers of a prompt are then
    /// compressed again as more of them arrive: entries are dropped step by step, or merged once when the last
    /// layer has arrived.
    fn measures(&self) -> bool {
        false
    }

    /// What is measured of a layer when a prompt is complete, one number a batch row.
    ///
    /// # Errors
    /// Whatever keeps the allocator from measuring; the cache is then left as it was.
    fn measure(&self, input: &ScoreInput<'_>) -> Result<Vec<f64>> {
        Ok(vec![0.0; input.seen.len()])
    }

    /// How many entries the layer keeps.
    ///
    /// # Errors
    /// Whatever keeps the allocator from answering; the cache is then left as it was.
    fn allocate(&self, input: &AllocateInput<'_>) -> Result<Allocation>;
}

/// How many entries are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Allocation {
    /// One number a batch row, the same for every kv head.
    Rows(Vec<usize>),
    /// One number a batch row and kv head, rows first.
    Heads(Vec<usize>),
}

/// What an allocator sees of a layer.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct AllocateInput<'a> {
    /// The layer.
    pub layer: usize,
    /// The dimensions of the cache.
    pub shape: CacheShape,
    /// The policy's budget in tokens a layer, one number a batch row.
    pub budget: &'a [usize],
    /// Tokens seen, one number a batch row, padding not counted.
    pub seen: &'a [usize],
    /// Entries held, one number a batch row and kv head, rows first: the last columns.
    pub held: &'a [usize],
    /// What is kept whatever the scores.
    pub protect: Protect,
    /// What was [measured](Allocator::measure) of each layer, `[layers][batch]`; `None` for layers of a prompt
    /// that have not arrived yet.
    pub measures: &'a [Option<Vec<f64>>],
    /// The profile of the model, if the policy has one.
    pub profile: Option<&'a Profile>,
    pub(crate) scores: &'a LazyScores<'a>,
}

impl AllocateInput<'_> {
    /// The scores, `[batch, kv_heads, entries]`, computed when first asked for.
    ///
    /// # Errors
    /// The scorer's own.
    pub fn scores(&self) -> Result<Tensor<3>> {
        self.scores.get().cloned()
    }

    /// The scores of another scorer, `[batch, kv_heads, entries]`.
    ///
    /// # Errors
    /// The scorer's own.
    pub fn scores_by(&self, scorer: &dyn Scorer) -> Result<Tensor<3>> {
        self.scores.by(scorer)
    }

    /// Tokens that are kept whatever their scores under a budget of `budget`, at most all of it.
    pub fn protected(&self, budget: usize) -> usize {
        let recent = self.protect.recent.tokens(budget);
        self.protect.sinks.saturating_add(recent).min(budget)
    }

    /// The measures of a batch row in the layers that have one, in order, and the place of this layer among them.
    ///
    /// # Errors
    /// [`Error::Stage`] if nothing was measured of this layer.
    pub fn measures_of(&self, row: usize, allocator: &str) -> Result<(usize, Vec<f64>)> {
        let known = |layer: usize| {
            self.measures
                .get(layer)
                .and_then(Option::as_ref)
                .and_then(|rows| rows.get(row))
                .copied()
        };
        if known(self.layer).is_none() {
            let reason = format!("has no measure of layer {}", self.layer);
            return Err(Error::Stage { stage: "allocator", name: allocator.to_owned(), reason });
        }
        let place = (0..self.layer).filter(|&layer| known(layer).is_some()).count();
        Ok((place, (0..self.shape.layers).filter_map(known).collect()))
    }

    /// The policy's profile.
    ///
    /// # Errors
    /// [`Error::Stage`] if there is none.
    pub fn profile(&self, allocator: &str) -> Result<&Profile> {
        self.profile.ok_or_else(|| Error::Stage {
            stage: "allocator",
            name: allocator.to_owned(),
            reason: "was called without its profile".to_owned(),
        })
    }
}

impl Debug for AllocateInput<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AllocateInput")
            .field("layer", &self.layer)
            .field("budget", &self.budget)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

/// Scores that are computed once, when first needed: most calls of a layer need none.
pub(crate) struct LazyScores<'a> {
    compute: &'a dyn Fn(Option<&dyn Scorer>) -> Result<Tensor<3>>,
    scores: OnceCell<Tensor<3>>,
}

impl<'a> LazyScores<'a> {
    /// `compute` scores with another scorer than the policy's if it is given one.
    pub(crate) fn new(compute: &'a dyn Fn(Option<&dyn Scorer>) -> Result<Tensor<3>>) -> Self {
        Self { compute, scores: OnceCell::new() }
    }

    /// Scores that are known, for when they are all there is.
    pub(crate) fn known(self, scores: Tensor<3>) -> Self {
        Self { compute: self.compute, scores: OnceCell::from(scores) }
    }

    pub(crate) fn get(&self) -> Result<&Tensor<3>> {
        match self.scores.get() {
            Some(scores) => Ok(scores),
            None => {
                let scores = (self.compute)(None)?;
                Ok(self.scores.get_or_init(|| scores))
            }
        }
    }

    fn by(&self, scorer: &dyn Scorer) -> Result<Tensor<3>> {
        (self.compute)(Some(scorer))
    }
}

/// The allocators that have a file form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AllocatorSpec {
    /// [`Uniform`]
    Uniform(Uniform),
    /// [`Pyramid`]
    Pyramid(Pyramid),
    /// [`Preference`]
    Preference(Preference),
    /// [`VarianceShare`]
    VarianceShare(VarianceShare),
    /// [`ErrorAware`]
    ErrorAware(ErrorAware),
    /// [`HeadAdaptive`]
    HeadAdaptive(HeadAdaptive),
    /// [`HeadProfile`]
    HeadProfile(HeadProfile),
}

impl Default for AllocatorSpec {
    fn default() -> Self {
        Self::Uniform(Uniform {})
    }
}

impl AllocatorSpec {
    /// The allocator it describes.
    pub fn allocator(&self) -> &dyn Allocator {
        match self {
            Self::Uniform(allocator) => allocator,
            Self::Pyramid(allocator) => allocator,
            Self::Preference(allocator) => allocator,
            Self::VarianceShare(allocator) => allocator,
            Self::ErrorAware(allocator) => allocator,
            Self::HeadAdaptive(allocator) => allocator,
            Self::HeadProfile(allocator) => allocator,
        }
    }
}

macro_rules! specs {
    ($($allocator:ident),*) => {$(
        impl From<$allocator> for AllocatorSpec {
            fn from(allocator: $allocator) -> Self {
                Self::$allocator(allocator)
            }
        }
    )*};
}
specs!(Uniform, Pyramid, Preference, VarianceShare, ErrorAware, HeadAdaptive, HeadProfile);
