use super::{
    AccumulatedAttention, GlobalLocal, Recency, RobustAttention, Scorer, WindowAttention,
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
    }
}
