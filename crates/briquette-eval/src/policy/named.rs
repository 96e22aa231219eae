use briquette::{
    Budget, Policy,
    store::{Dense, StoreBuilder},
};

/// A policy with its label.
#[derive(Clone, Debug)]
pub struct NamedPolicy {
    /// Label in reports: two policies may be of one method.
    pub label: String,
    /// The policy.
    pub policy: Policy,
}

impl NamedPolicy {
    /// Its budget as text, `-` for a policy that keeps everything.
    pub fn budget(&self) -> String {
        self.policy.budget().map_or_else(|| "-".into(), |budget| budget.to_string())
    }

    /// Whether nothing is ever dropped or rounded, so that it makes no difference when the question
    /// comes.
    pub fn keeps_all(&self) -> bool {
        self.policy.budget().is_none() && self.policy.store().name() == Dense {}.name()
    }

    /// A budget in bytes is for all rows of a batch together, so it says something of one prompt
    /// only when that is alone.
    pub fn rows_share_budget(&self) -> bool {
        matches!(self.policy.budget(), Some(Budget::Bytes(_)))
    }
}
