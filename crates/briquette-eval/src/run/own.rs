use briquette::{Error as Refusal, Policy};

use super::{budget::RunBudget, candidate::Candidate};
use crate::{
    Error, Result,
    policy::{AMPLE, NamedPolicy},
    steering,
};

/// A policy that is given in code, for [`Plan::with_policies`](super::Plan::with_policies).
#[derive(Clone, Debug)]
pub struct OwnPolicy {
    label: String,
    policy: Policy,
    version: Option<String>,
}

impl OwnPolicy {
    /// A policy by its label in results.
    pub fn new(label: impl Into<String>, policy: Policy) -> Self {
        Self { label: label.into(), policy, version: None }
    }

    /// The same policy with a version of its code. A policy with a stage of one's own must have
    /// one: a run that is continued takes stored results for those of this policy if name, fields
    /// and version are the same, and cannot see what the code does.
    #[must_use]
    pub fn with_version(self, version: impl Into<String>) -> Self {
        Self { version: Some(version.into()), ..self }
    }

    /// The policy at its budget, or at each of `default` if it takes one and has none.
    pub(super) fn candidates(&self, default: &[RunBudget]) -> Result<Vec<Candidate>> {
        let Self { label, policy, version } = self;
        if let Some(fault) = steering::fault(label) {
            let reason = format!("its label cannot be shown: {fault}");
            return Err(Error::PolicyText { text: label.escape_debug().to_string(), reason });
        }
        policy.clone().with_default_budget(AMPLE).check()?;
        match policy.to_json() {
            Err(Refusal::NotSerializable { stage, name, .. }) if version.is_none() => {
                return Err(Error::PolicyVersion { label: label.clone(), stage, name });
            }
            Ok(_) | Err(Refusal::NotSerializable { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let candidates = if policy.budget().is_some() || !policy.takes_budget() {
            policy.check()?;
            vec![Candidate::of(NamedPolicy { label: label.clone(), policy: policy.clone() })]
        } else if default.is_empty() {
            let reason = "it needs a budget: give it one by `with_budget`, or write `budgets` at \
                          the top of the run file";
            return Err(Error::PolicyText { text: label.clone(), reason: reason.into() });
        } else {
            let at = |budget: &RunBudget| {
                let policy = policy.clone().with_budget(budget.budget());
                let checked = policy.check().map(|()| policy);
                Candidate::at(label, *budget, checked)
            };
            default.iter().map(at).collect()
        };
        let versioned = |one| Candidate { version: version.clone(), ..one };
        Ok(candidates.into_iter().map(versioned).collect())
    }
}
