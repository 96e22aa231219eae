use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    AccumulatedAttention, BlockWise, Capacity, ChunkAttention, Compactor, Critical, Cur, DropError,
    EntropyGated, ExpectedAttention, GlobalLocal, KeyDifference, KeyNorm, LagRelative, Leverage,
    QueryDirection, QuestionAttention, Random, Recency, ReconstructionAttention, Redundancy,
    RereadAttention, RobustAttention, Scorer, Trigonometric, WholeChunks, WindowAttention,
    WindowVariance,
};
use crate::spec::built_in;

built_in! {
    /// The scorers that have a file form.
    ScorerSpec: Scorer {
        Recency,
        AccumulatedAttention,
        RobustAttention,
        WindowAttention,
        WindowVariance,
        GlobalLocal,
        KeyNorm,
        KeyDifference,
        Random,
        LagRelative,
        Cur,
        Leverage,
        ChunkAttention,
        Compactor,
        ExpectedAttention,
        Capacity,
        Redundancy,
        ReconstructionAttention,
        DropError,
        QueryDirection,
        Trigonometric,
        QuestionAttention,
        RereadAttention,
    } around {
        WholeChunks(WholeChunksForm),
        EntropyGated(EntropyGatedForm),
        BlockWise(BlockWiseForm),
        Critical(CriticalForm),
    }
}

/// The file form of [`WholeChunks`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WholeChunksForm {
    length: usize,
    of: Box<ScorerSpec>,
}

impl WholeChunksForm {
    /// `None` if the scorer inside has no file form.
    fn of(stage: &WholeChunks) -> Option<Self> {
        let of = Box::new(ScorerSpec::of(stage.of.as_ref())?);
        Some(Self { length: stage.length, of })
    }

    fn stage(self) -> Arc<dyn Scorer> {
        Arc::new(WholeChunks { length: self.length, of: self.of.stage() })
    }
}

/// The file form of [`EntropyGated`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EntropyGatedForm {
    length: usize,
    few: usize,
    of: Box<ScorerSpec>,
}

impl EntropyGatedForm {
    /// `None` if the scorer inside has no file form.
    fn of(stage: &EntropyGated) -> Option<Self> {
        let EntropyGated { length, few, ref of } = *stage;
        Some(Self { length, few, of: Box::new(ScorerSpec::of(of.as_ref())?) })
    }

    fn stage(self) -> Arc<dyn Scorer> {
        Arc::new(EntropyGated { length: self.length, few: self.few, of: self.of.stage() })
    }
}

/// The file form of [`BlockWise`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BlockWiseForm {
    length: usize,
    of: Box<ScorerSpec>,
}

impl BlockWiseForm {
    /// `None` if the scorer inside has no file form.
    fn of(stage: &BlockWise) -> Option<Self> {
        let of = Box::new(ScorerSpec::of(stage.of.as_ref())?);
        Some(Self { length: stage.length, of })
    }

    fn stage(self) -> Arc<dyn Scorer> {
        Arc::new(BlockWise { length: self.length, of: self.of.stage() })
    }
}

/// The file form of [`Critical`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CriticalForm {
    first: f64,
    epsilon: f64,
    of: Box<ScorerSpec>,
}

impl CriticalForm {
    /// `None` if the scorer inside has no file form.
    fn of(stage: &Critical) -> Option<Self> {
        let Critical { first, epsilon, ref of } = *stage;
        Some(Self { first, epsilon, of: Box::new(ScorerSpec::of(of.as_ref())?) })
    }

    fn stage(self) -> Arc<dyn Scorer> {
        Arc::new(Critical { first: self.first, epsilon: self.epsilon, of: self.of.stage() })
    }
}
