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

impl Line {
    /// The fingerprint of the policy. That of the sample, behind it, depends on the metric too.
    pub(super) fn policy(&self) -> &str {
        self.fingerprint.split('-').next().unwrap_or_default()
    }
}
