use serde::{Deserialize, Serialize};

use crate::record::Record;

/// A line of results behind the header: a [`Record`], and the fingerprint of what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The result.
    #[serde(flatten)]
    pub record: Record,
    /// Fingerprint of the policy, `-`, and that of the sample: the same key with another one is a
    /// policy or a task that was changed under its old name.
    #[serde(rename = "of")]
    pub fingerprint: String,
}
