use super::{EmaMerge, Evict, EvictThenMerge, GaussianMerge, Reducer, ValueMerge};
use crate::stage::built_in;

built_in! {
    /// Reducers that have a file form.
    ReducerSpec: Reducer {
        Evict,
        ValueMerge,
        GaussianMerge,
        EmaMerge,
        EvictThenMerge,
    }
}

impl Default for ReducerSpec {
    fn default() -> Self {
        Self::Evict(Evict {})
    }
}
