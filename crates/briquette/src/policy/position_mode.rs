use serde::{Deserialize, Serialize};

/// Positions at which a cache encodes its entries. A model that rotates queries and keys itself
/// ([`Rotated`](crate::position::Rotated)) has `Written` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PositionMode {
    /// Positions that entries were written at. Keys are held encoded.
    #[default]
    Written,
    /// Positions 0, 1, 2 … counted over the entries in the cache, as in StreamingLLM. Keys are held
    /// without positions and encoded in every call.
    InCache,
    /// Positions that entries were written at, encoded in every call: keys are held without
    /// positions, so that they can be compared and merged without them (EMS, "without position").
    Deferred,
}
