use super::{Dense, Quantized, Ragged, Shared, StoreBuilder};
use crate::spec::built_in;

built_in! {
    /// The stores that have a file form.
    StoreSpec: StoreBuilder {
        Dense,
        Ragged,
        Shared,
        Quantized,
    }
}

impl Default for StoreSpec {
    fn default() -> Self {
        Self::Dense(Dense {})
    }
}
