use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error};

use super::{
    AccumulatedAttention, BlockWise, CapKv, ChunkAttention, ChunkKv, Compactor, CriticalKv, CurDkv,
    DropError, EntropyGated, ExpectedAttention, GlobalLocal, KeyDiff, Knorm, LagKv, Leverage,
    QFilter, QuestionAttention, RKv, Random, Recency, ReconstructionAttention, RereadAttention,
    RobustAttention, Scorer, TriAttention, WindowAttention, WindowVariance,
};
use crate::stage::built_in;

built_in! {
    /// Scorers that have a file form.
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
        ChunkKv,
        EntropyGated,
        BlockWise,
        #[serde(rename = "criticalkv", alias = "critical")]
        CriticalKv,
    }
}

/// Writes a scorer inside another one as its own file form.
impl Serialize for dyn Scorer {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match ScorerSpec::of(self) {
            Some(spec) => spec.serialize(to),
            None => Err(S::Error::custom(format!("the scorer `{}` has no file form", self.name()))),
        }
    }
}

impl<'de> Deserialize<'de> for Box<dyn Scorer> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        ScorerSpec::deserialize(from).map(ScorerSpec::stage)
    }
}
