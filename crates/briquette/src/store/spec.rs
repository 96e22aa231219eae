use super::{Clustered, Dense, Fp8, KeyChannels, Quantized, Ragged, StoreBuilder, TurboQuant};
use crate::stage::built_in;

built_in! {
    /// The stores that have a file form.
    StoreSpec: StoreBuilder {
        Dense,
        Ragged,
        Clustered,
        Quantized,
        Fp8,
        TurboQuant,
        KeyChannels,
    }
}

impl Default for StoreSpec {
    fn default() -> Self {
        Self::Dense(Dense {})
    }
}
