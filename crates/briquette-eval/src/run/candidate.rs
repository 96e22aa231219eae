use std::path::PathBuf;

use briquette::{Budget, Policy};

use crate::{Result, policy::NamedPolicy};

/// A policy with a budget that is to be measured, or the reason why it cannot be.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// Label of the policy in tables.
    pub(super) label: String,
    /// Its budget as text, `-` for a policy without one.
    pub(super) budget: String,
    /// The policy.
    pub(super) policy: std::result::Result<Policy, String>,
    /// The file of what is read before every sample.
    pub(super) prefix: Option<PathBuf>,
    /// The version of code that is a part of it.
    pub(super) version: Option<String>,
}

impl Candidate {
    /// A policy at the budget that it has.
    pub(super) fn of(named: NamedPolicy) -> Self {
        let budget = named.budget();
        Self { label: named.label, budget, policy: Ok(named.policy), prefix: None, version: None }
    }

    /// A policy at a budget that it is given, or the reason why it cannot hold there.
    pub(super) fn at(label: &str, budget: Budget, policy: Result<Policy>) -> Self {
        Self {
            label: label.to_owned(),
            budget: budget.to_string(),
            policy: policy.map_err(|error| error.to_string()),
            prefix: None,
            version: None,
        }
    }
}
