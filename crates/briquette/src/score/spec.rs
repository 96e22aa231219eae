use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    AccumulatedAttention, BlockWise, CapKv, ChunkAttention, ChunkKv, Compactor, CriticalKv, CurDkv,
    DropError, EntropyGated, ExpectedAttention, GlobalLocal, KeyDiff, Knorm, LagKv, Leverage,
    QFilter, QuestionAttention, RKv, Random, Recency, ReconstructionAttention, RereadAttention,
    RobustAttention, Scorer, TriAttention, WindowAttention, WindowVariance,
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
        #[serde(alias = "key-norm")]
        Knorm,
        #[serde(rename = "keydiff", alias = "key-difference")]
        KeyDiff,
        Random,
        #[serde(rename = "lagkv", alias = "lag-relative")]
        LagKv,
        #[serde(rename = "curdkv", alias = "cur")]
        CurDkv,
        Leverage,
        ChunkAttention,
        Compactor,
        ExpectedAttention,
        #[serde(rename = "capkv", alias = "capacity")]
        CapKv,
        #[serde(alias = "redundancy")]
        RKv,
        ReconstructionAttention,
        DropError,
        #[serde(alias = "query-direction")]
        QFilter,
        #[serde(rename = "triattention", alias = "trigonometric")]
        TriAttention,
        QuestionAttention,
        RereadAttention,
    } around {
        #[serde(rename = "chunkkv", alias = "whole-chunks")]
        ChunkKv(ChunkKvForm),
        EntropyGated(EntropyGatedForm),
        BlockWise(BlockWiseForm),
        #[serde(rename = "criticalkv", alias = "critical")]
        CriticalKv(CriticalKvForm),
    }
}

/// The file form of [`ChunkKv`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChunkKvForm {
    length: usize,
    of: Box<ScorerSpec>,
}

impl ChunkKvForm {
    /// `None` if the scorer inside has no file form.
    fn of(stage: &ChunkKv) -> Option<Self> {
        let of = Box::new(ScorerSpec::of(stage.of.as_ref())?);
        Some(Self { length: stage.length, of })
    }

    fn stage(self) -> Arc<dyn Scorer> {
        Arc::new(ChunkKv { length: self.length, of: self.of.stage() })
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

/// The file form of [`CriticalKv`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CriticalKvForm {
    first: f64,
    epsilon: f64,
    of: Box<ScorerSpec>,
}

impl CriticalKvForm {
    /// `None` if the scorer inside has no file form.
    fn of(stage: &CriticalKv) -> Option<Self> {
        let CriticalKv { first, epsilon, ref of } = *stage;
        Some(Self { first, epsilon, of: Box::new(ScorerSpec::of(of.as_ref())?) })
    }

    fn stage(self) -> Arc<dyn Scorer> {
        Arc::new(CriticalKv { first: self.first, epsilon: self.epsilon, of: self.of.stage() })
    }
}
