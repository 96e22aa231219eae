use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error};

use super::{
    AccumulatedAttention, BlockWise, Cake, CapKv, ChunkKv, Compactor, CriticalKv, CurDkv, DropKv,
    Ems, EntropyGated, ExpectedAttention, Finch, KeyDiff, Knorm, KvCompose, KvZip, LagKv, Leverage,
    NonCausal, QFilter, RKv, Random, Recency, RoCo, Scorer, TriAttention, WindowAttention,
};
use crate::stage::built_in;

built_in! {
    /// Scorers that have a file form.
    ScorerSpec: Scorer {
        Recency,
        AccumulatedAttention,
        #[serde(rename = "roco")]
        RoCo,
        WindowAttention,
        Cake,
        Ems,
        Knorm,
        #[serde(rename = "keydiff")]
        KeyDiff,
        Random,
        #[serde(rename = "lagkv")]
        LagKv,
        #[serde(rename = "curdkv")]
        CurDkv,
        Leverage,
        NonCausal,
        Compactor,
        ExpectedAttention,
        #[serde(rename = "capkv")]
        CapKv,
        RKv,
        #[serde(rename = "kvzip")]
        KvZip,
        #[serde(rename = "dropkv")]
        DropKv,
        QFilter,
        #[serde(rename = "triattention")]
        TriAttention,
        Finch,
        #[serde(rename = "kvcompose")]
        KvCompose,
    } around {
        #[serde(rename = "chunkkv")]
        ChunkKv,
        EntropyGated,
        BlockWise,
        #[serde(rename = "criticalkv")]
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
