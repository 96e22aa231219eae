use super::{
    AccumulatedAttention, Capacity, ChunkAttention, Compactor, Cur, ExpectedAttention, GlobalLocal,
    KeyDifference, KeyNorm, LagRelative, Leverage, Random, Recency, RobustAttention, Scorer,
    WindowAttention, WindowVariance,
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
    }
}
