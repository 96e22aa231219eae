use serde::{Deserialize, Serialize};

/// At which positions a cache encodes the entries it holds. A model that rotates queries and keys itself
/// ([`Rotated`](crate::position::Rotated)) has `Written` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PositionMode {
    /// At the positions they were written at. Keys are held encoded.
    #[default]
    Written,
    /// Counted 0, 1, 2 … over the entries held, as StreamingLLM does. Keys are held as they came and encoded
    /// in every call.
    InCache,
    /// At the positions they were written at, but in every call: keys are held as they came, so that they can be
    /// compared and merged without their positions (EMS, "without position").
    Deferred,
}
