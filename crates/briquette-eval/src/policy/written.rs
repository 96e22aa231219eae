use briquette::{Budget, Policy};

use super::{
    change::{changed, changed_everywhere},
    named::NamedPolicy,
};
use crate::{Error, Result};

/// Large enough for anything a policy protects.
pub const AMPLE: Budget = Budget::Tokens(1 << 24);

/// A policy as it is written, at the budget that its file or its changes say, if they do.
#[derive(Clone, Debug)]
pub struct Written {
    label: String,
    policy: Policy,
    /// The budget that changes have given it.
    changed: Option<Budget>,
}

impl Written {
    pub(crate) fn new<'a>(
        label: String,
        base: &Policy,
        changes: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self> {
        let mut written = Self { label, policy: base.clone(), changed: None };
        for change in changes {
            let policy = changed(&written.policy, change);
            let policy = policy.map_err(|reason| written.error(reason))?;
            written.replace(policy);
        }
        // What no budget helps.
        written.policy.clone().with_default_budget(AMPLE).check()?;
        Ok(written)
    }

    /// Makes a change to every place that has its key. Returns whether there is one.
    pub(crate) fn change_everywhere(&mut self, change: &str) -> Result<bool> {
        let policy = changed_everywhere(&self.policy, change);
        let Some(policy) = policy.map_err(|reason| self.error(reason))? else { return Ok(false) };
        self.replace(policy);
        self.policy.clone().with_default_budget(AMPLE).check()?;
        Ok(true)
    }

    fn replace(&mut self, policy: Policy) {
        if policy.budget() != self.policy.budget() {
            self.changed = policy.budget();
        }
        self.policy = policy;
    }

    fn error(&self, reason: String) -> Error {
        Error::PolicyText { text: self.label.clone(), reason }
    }

    /// Its name in tables.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The policy, which may have to be given a budget yet.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The budget that its file or its changes say.
    pub fn budget(&self) -> Option<Budget> {
        self.policy.budget()
    }

    /// Whether a budget can be given to it.
    pub fn takes_budget(&self) -> bool {
        self.policy.takes_budget() && self.changed.is_none()
    }

    /// The policy at this budget.
    ///
    /// # Errors
    /// [`Error::PolicyText`] if its changes say one, [`briquette::Error::BudgetUnused`] if it takes
    /// none, and what its check refuses.
    pub fn at(self, budget: Budget) -> Result<NamedPolicy> {
        if let Some(own) = self.changed {
            let reason = format!("it says a budget of {own}, and {budget} is given: leave one out");
            return Err(self.error(reason));
        }
        Self { policy: self.policy.with_budget(budget), ..self }.checked()
    }

    /// The policy at the budget that is written, or at this one if none is.
    ///
    /// # Errors
    /// What its check refuses.
    pub fn or_at(self, budget: Budget) -> Result<NamedPolicy> {
        Self { policy: self.policy.with_default_budget(budget), ..self }.checked()
    }

    /// The policy at the budget that is written.
    ///
    /// # Errors
    /// [`briquette::Error::BudgetMissing`], and what its check refuses.
    pub fn checked(self) -> Result<NamedPolicy> {
        self.policy.check()?;
        Ok(NamedPolicy { label: self.label, policy: self.policy })
    }
}
