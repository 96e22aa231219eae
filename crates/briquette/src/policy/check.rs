//! Whether what a policy is made of goes together.

use super::Policy;
use crate::{
    CacheShape, Error, Result,
    budget::{Budget, Protect},
    check,
};

impl Policy {
    /// Checks every parameter. [`KvCache::new`](crate::KvCache::new) does so too.
    ///
    /// # Errors
    /// [`Error::SetterMismatch`], [`Error::InvalidParameter`], [`Error::BudgetTooSmall`], [`Error::MergeBudget`], or
    /// [`Error::StoreMismatch`].
    pub fn check(&self) -> Result<()> {
        self.check_setters()?;
        self.protect.check()?;
        self.scorer().check()?;
        self.allocator().check()?;
        self.reducer().check()?;
        self.store().check()?;
        self.check_store()?;
        if let Some(every) = self.schedule.decode_every {
            check::count("schedule.decode-every", every)?;
        }
        if let (Some(every), Some(_)) = (self.schedule.decode_every, self.observes().repeat) {
            let must_be = "absent: decoded tokens are not repeated in a second pass";
            return check::refuse("schedule.decode-every", every, must_be);
        }
        let Some(budget) = self.budget else { return Ok(()) };
        budget.check()?;
        if let Budget::Tokens(tokens) = budget {
            self.check_tokens(budget, tokens)?;
        }
        self.protect.check_columns()?;
        self.reducer().check_budget(budget, self.protect)
    }

    /// A store that pads heads to the longest, or holds a copy for each token, would take the memory that the other
    /// stages have freed.
    fn check_store(&self) -> Result<()> {
        let store = self.store();
        let fail = |stage: &str, needs| {
            let (stage, store) = (stage.to_owned(), store.name().to_owned());
            Err(Error::StoreMismatch { policy: self.name.clone(), stage, needs, store })
        };
        if self.allocator().allocates_heads() && !store.holds_ragged_heads() {
            return fail(self.allocator().name(), "heads of different lengths");
        }
        if self.reducer().makes_ragged_heads() && !store.holds_ragged_heads() {
            return fail(self.reducer().name(), "heads of different lengths");
        }
        if self.reducer().makes_shared_entries() && !store.holds_shared_entries() {
            return fail(self.reducer().name(), "entries that tokens share");
        }
        Ok(())
    }

    /// Checks that it can serve a cache of this shape: its store, and the profile it reads.
    ///
    /// # Errors
    /// [`Error::ProfileMissing`], [`Error::ProfileShape`], [`Error::InvalidProfile`] or
    /// [`Error::InvalidParameter`].
    pub fn check_shape(&self, shape: CacheShape) -> Result<()> {
        self.store().check_shape(shape)?;
        if let Some(profile) = self.profile() {
            profile.check()?;
            return profile.check_shape(shape);
        }
        let missing = |stage, name: &str| {
            let (policy, name) = (self.name.clone(), name.to_owned());
            Err(Error::ProfileMissing { policy, stage, name })
        };
        if self.scorer().reads_profile() {
            return missing("scorer", self.scorer().name());
        }
        if self.allocator().reads_profile() {
            return missing("allocator", self.allocator().name());
        }
        Ok(())
    }

    pub(super) fn check_tokens(&self, budget: Budget, tokens: usize) -> Result<()> {
        let Protect { sinks, .. } = self.protect;
        let recent = self.protect.recent_tokens(tokens);
        if sinks.saturating_add(recent) > tokens {
            return Err(Error::BudgetTooSmall { budget, tokens, sinks, recent });
        }
        Ok(())
    }

    /// A setter that was called in vain is a mistake of the caller's.
    pub(super) fn check_setters(&self) -> Result<()> {
        let Some(mismatch) = &self.mismatch else { return Ok(()) };
        Err(Error::SetterMismatch {
            policy: self.name.clone(),
            setter: mismatch.setter,
            has: mismatch.has.clone(),
        })
    }
}
