//! Stage two: how many entries a layer may keep.

mod uniform;

use std::{cell::OnceCell, fmt::Debug};

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

pub use uniform::Uniform;

use crate::{CacheShape, Result};

/// Shares a budget out over layers (and, with stores that can hold it, heads).
pub trait Allocator: Debug + Send + Sync {
    /// The name used in tables and errors.
    fn name(&self) -> &str;

    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter).
    fn check(&self) -> Result<()> {
        Ok(())
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
}

/// What an allocator sees of a layer.
#[non_exhaustive]
pub struct AllocateInput<'a> {
    /// The layer.
    pub layer: usize,
    /// The dimensions of the cache.
    pub shape: CacheShape,
    /// The policy's budget in tokens a layer, one number a batch row.
    pub budget: &'a [usize],
    /// Entries held, one number a batch row, padding not counted.
    pub held: &'a [usize],
    scores: &'a LazyScores<'a>,
}

impl<'a> AllocateInput<'a> {
    pub(crate) fn new(
        layer: usize,
        shape: CacheShape,
        budget: &'a [usize],
        held: &'a [usize],
        scores: &'a LazyScores<'a>,
    ) -> Self {
        Self { layer, shape, budget, held, scores }
    }

    /// The scores, `[batch, kv_heads, entries]`, computed when first asked for.
    ///
    /// # Errors
    /// The scorer's own.
    pub fn scores(&self) -> Result<&Tensor<3>> {
        self.scores.get()
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
    compute: &'a dyn Fn() -> Result<Tensor<3>>,
    scores: OnceCell<Tensor<3>>,
}

impl<'a> LazyScores<'a> {
    pub(crate) fn new(compute: &'a dyn Fn() -> Result<Tensor<3>>) -> Self {
        Self { compute, scores: OnceCell::new() }
    }

    pub(crate) fn get(&self) -> Result<&Tensor<3>> {
        match self.scores.get() {
            Some(scores) => Ok(scores),
            None => {
                let scores = (self.compute)()?;
                Ok(self.scores.get_or_init(|| scores))
            }
        }
    }
}

/// The allocators that have a file form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AllocatorSpec {
    /// [`Uniform`]
    Uniform(Uniform),
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
        }
    }
}
