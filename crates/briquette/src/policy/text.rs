//! Policies as they are written on a command line or in code: a method with changes.

use super::{
    Policy,
    change::{changed, changed_everywhere},
};
use crate::{Error, Result, budget::Budget};

/// Budget large enough for anything a policy protects.
pub const AMPLE: Budget = Budget::Tokens(1 << 24);

impl Policy {
    /// Reads a method with changes: `NAME[:KEY=VALUE]…`, as `snapkv:kernel=15:sinks=4`.
    ///
    /// A key is one of the method's [file form](Self::to_toml), with its path (`score.pool.kernel`)
    /// where the form has it more than once. A value is TOML; a text needs no quotes. A change may
    /// say the budget, as `budget=25%`. Without any budget, set one later, as for
    /// [`named`](Self::named). A policy file is read by [`from_file`](Self::from_file).
    ///
    /// ```
    /// use briquette::{Budget, Policy};
    ///
    /// # fn main() -> briquette::Result<()> {
    /// let policy = Policy::parse("snapkv:kernel=15:sinks=4", Budget::Ratio(0.25))?;
    /// assert_eq!(policy.protect().sinks, 4);
    ///
    /// let error = Policy::parse("SnapKV", None).unwrap_err().to_string();
    /// assert!(error.starts_with("`SnapKV` is no method: did you mean `snapkv`? Known: full, "));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownMethod`]; [`Error::PolicyText`] for a change that is not understood, and for
    /// a second budget; [`Error::BudgetUnused`]; or what the [check](Self::check) of a parameter
    /// refuses.
    pub fn parse(text: &str, budget: impl Into<Option<Budget>>) -> Result<Self> {
        let (name, changes) = split(text);
        let written = Written::new(text.to_owned(), &Self::named(name, None)?, changes)?;
        let budget: Option<Budget> = budget.into();
        match budget {
            Some(budget) => written.at(budget),
            None => Ok(written.policy),
        }
    }
}

/// Returns the name at the beginning of a policy's text, and its changes.
pub fn split(text: &str) -> (&str, Vec<&str>) {
    let mut parts = text.split(':');
    (parts.next().unwrap_or_default(), parts.collect())
}

/// Policy as it is written, at the budget that its file or its changes say, if they do.
#[derive(Clone, Debug)]
pub struct Written {
    label: String,
    policy: Policy,
    /// The budget that changes have given it.
    changed: Option<Budget>,
}

impl Written {
    /// Changes a policy. `label` names it in errors.
    ///
    /// # Errors
    /// [`Error::PolicyText`] for a change that is not understood, and what no budget helps.
    pub fn new<'a>(
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
        written.policy.clone().with_default_budget(AMPLE).check()?;
        Ok(written)
    }

    /// Makes a change to every place that has its key. Returns whether there is one.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn change_everywhere(&mut self, change: &str) -> Result<bool> {
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

    /// Returns its name in tables.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the policy, which may have to be given a budget yet.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the budget that its file or its changes say.
    pub fn budget(&self) -> Option<Budget> {
        self.policy.budget()
    }

    /// Whether a budget can be given to it.
    pub fn takes_budget(&self) -> bool {
        self.policy.takes_budget() && self.changed.is_none()
    }

    /// Returns the policy at this budget.
    ///
    /// # Errors
    /// [`Error::PolicyText`] if its changes say one, [`Error::BudgetUnused`] if it takes none, and
    /// what its check refuses.
    pub fn at(self, budget: Budget) -> Result<Policy> {
        if let Some(own) = self.changed {
            let reason = format!("it says a budget of {own}, and {budget} is given: leave one out");
            return Err(self.error(reason));
        }
        Self { policy: self.policy.with_budget(budget), ..self }.checked()
    }

    /// Returns the policy at the budget that is written, or at this one if none is.
    ///
    /// # Errors
    /// What its check refuses.
    pub fn or_at(self, budget: Budget) -> Result<Policy> {
        Self { policy: self.policy.with_default_budget(budget), ..self }.checked()
    }

    /// Returns the policy at the budget that is written.
    ///
    /// # Errors
    /// [`Error::BudgetMissing`], and what its check refuses.
    pub fn checked(self) -> Result<Policy> {
        self.policy.check()?;
        Ok(self.policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget::Tokens(64);

    #[test]
    fn a_text_is_a_method_with_changes() {
        let policy = Policy::parse("snapkv:kernel=15:protect.sinks=4", BUDGET).unwrap();
        let pool = crate::score::Pool::avg(15);
        let expected = Policy::snapkv(BUDGET).with_sinks(4).with_pool(pool);
        assert_eq!(policy.to_toml().unwrap(), expected.to_toml().unwrap());
        let budget = |text, budget: Option<Budget>| Policy::parse(text, budget).unwrap().budget();
        assert_eq!(budget("tova", None), None);
        assert_eq!(budget("tova", Some(BUDGET)), Some(BUDGET));
        assert_eq!(budget("tova:budget=25%", None), Some(Budget::Ratio(0.25)));
    }

    #[test]
    fn what_is_not_understood_is_refused_with_what_was_meant() {
        let error = |text, budget: Option<Budget>| Policy::parse(text, budget).unwrap_err();
        for (text, says) in [
            ("snapvk:kernel=15", "`snapvk` is no method: did you mean `snapkv`? Known: full, "),
            ("H2O", "`H2O` is no method: did you mean `h2o`? Known: full, "),
            ("nosuch", "`nosuch` is no method; known: full, "),
        ] {
            let error = error(text, None);
            assert!(matches!(error, Error::UnknownMethod { .. }), "{error:?}");
            assert!(error.to_string().starts_with(says), "{error}");
        }
        for (text, budget, says) in [
            ("snapkv:kernel", None, "policy `snapkv:kernel`: `kernel` is not key=value"),
            ("snapkv:Kernel=15", None, "did you mean `kernel`? there is no `Kernel`, but "),
            ("snapkv:kernel=4", None, "kernel"),
            ("tova:budget=77", Some(BUDGET), "it says a budget of 77, and 64 is given: leave"),
        ] {
            let error = error(text, budget);
            assert!(matches!(error, Error::PolicyText { .. }), "{error:?}");
            assert!(error.to_string().contains(says), "{error}");
        }
        let unused = error("fp8", Some(BUDGET));
        assert!(matches!(unused, Error::BudgetUnused { .. }), "{unused:?}");
    }
}
