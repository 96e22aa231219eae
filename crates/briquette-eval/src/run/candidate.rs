use std::path::PathBuf;

use briquette::{Policy, Result};

use super::budget::RunBudget;
use crate::policy::NamedPolicy;

/// Label of the full cache, with which the others are compared.
pub const FULL: &str = "full";

/// A policy with a budget that is to be measured, or the reason why it cannot be.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) label: String,
    /// Its budget as text, `-` for a policy without one.
    pub(super) budget: String,
    /// The policy; of one that is to hold a share of the bytes, at the same share of the tokens.
    pub(super) policy: std::result::Result<Policy, String>,
    /// The share of the full cache's bytes that its budget is to hold.
    pub(super) held: Option<f64>,
    /// The file of what is read before every sample.
    pub(super) prefix: Option<PathBuf>,
    /// The version of code that is a part of it.
    pub(super) version: Option<String>,
}

impl Candidate {
    /// A policy at the budget that it has.
    pub(super) fn of(named: NamedPolicy) -> Self {
        let budget = named.budget();
        Self {
            label: named.label,
            budget,
            policy: Ok(named.policy),
            held: None,
            prefix: None,
            version: None,
        }
    }

    /// A policy at a budget that it is given, or the reason why it cannot hold there.
    pub(super) fn at(label: &str, budget: RunBudget, policy: Result<Policy>) -> Self {
        Self {
            label: label.to_owned(),
            budget: budget.to_string(),
            policy: policy.map_err(|error| error.to_string()),
            held: budget.held(),
            prefix: None,
            version: None,
        }
    }
}
