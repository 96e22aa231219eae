//! Checks that the parts of a policy fit each other.

use std::any::Any;

use super::{Policy, PositionMode, SparsePrefill};
use crate::{
    CacheShape, Error, Result,
    budget::{Budget, Protect, Recent},
    check,
    score::Recency,
    stage::AttentionRequest,
};

impl Policy {
    /// Checks every parameter, and that the policy has a budget if it [takes
    /// one](Self::takes_budget). [`KvCache::new`](crate::KvCache::new) does so too.
    ///
    /// # Errors
    /// [`Error::SetterMismatch`], [`Error::InvalidParameter`], [`Error::BudgetMissing`],
    /// [`Error::BudgetUnused`], [`Error::BudgetTooSmall`], [`Error::BudgetAllProtected`],
    /// [`Error::MergeBudget`], or [`Error::StoreMismatch`].
    pub fn check(&self) -> Result<()> {
        self.check_parts()?;
        match self.takes_budget() && self.budget.is_none() {
            true => Err(Error::BudgetMissing { policy: self.name.clone() }),
            false => Ok(()),
        }
    }

    /// Checks every parameter of a policy that may get its budget later.
    pub(super) fn check_parts(&self) -> Result<()> {
        self.check_setters()?;
        self.protect.check()?;
        self.scorer().check()?;
        self.allocator().check()?;
        self.reducer().check()?;
        self.store().check()?;
        self.sparse_prefill().map_or(Ok(()), SparsePrefill::check)?;
        self.check_store()?;
        if let Some(every) = self.schedule.decode_every {
            check::count("schedule.decode-every", every)?;
        }
        self.check_second_pass()?;
        self.check_append_only()?;
        let Some(budget) = self.budget else { return Ok(()) };
        if !self.takes_budget() {
            return Err(Error::BudgetUnused { policy: self.name.clone(), budget });
        }
        budget.check()?;
        if let Budget::Tokens(tokens) = budget {
            self.check_tokens(budget, tokens)?;
        }
        self.protect.check_columns()?;
        self.reducer().check_budget(budget, self.protect)
    }

    /// Checks that a second pass is all that a policy compresses by. It does so between two calls,
    /// where there are no queries of the prompt.
    fn check_second_pass(&self) -> Result<()> {
        if self.second_pass().is_none() {
            return Ok(());
        }
        if let Some(every) = self.schedule.decode_every {
            let must_be = "absent: decoded tokens are not repeated in a second pass";
            return check::refuse("schedule.decode-every", every, must_be);
        }
        let stages = [
            ("score", self.scorer().name(), self.scorer().observes()),
            ("allocate", self.allocator().name(), self.allocator().observes()),
            ("reduce", self.reducer().name(), self.reducer().observes()),
        ];
        let looks = |observes: AttentionRequest| observes.window > 0 || observes.holds_queries();
        match stages.into_iter().find(|(.., observes)| looks(*observes)) {
            Some((stage, name, _)) => {
                let must_be = "a stage that looks at no queries: a second pass has those that repeat \
                               the prompt, and not its own";
                check::refuse(stage, name, must_be)
            }
            None => Ok(()),
        }
    }

    /// Checks append-only decoding: the reducer must only drop entries, and the store must not
    /// rewrite them.
    fn check_append_only(&self) -> Result<()> {
        let Some(append) = self.schedule.append_only else { return Ok(()) };
        check::count("schedule.append-only.page", append.page)?;
        check::count("schedule.append-only.keep", append.keep)?;
        let Some(every) = self.schedule.decode_every else {
            return check::refuse("schedule.decode-every", "absent", "given with append-only");
        };
        if append.keep > every {
            let must_be = format!("at most the {every} of decode-every");
            return check::refuse("schedule.append-only.keep", append.keep, must_be);
        }
        if let Recent::Tokens(recent) = self.protect.recent
            && recent > append.keep
        {
            let must_be = format!("at least the {recent} recent tokens that are always kept");
            return check::refuse("schedule.append-only.keep", append.keep, must_be);
        }
        if !self.reducer().drops_only() {
            return check::refuse("reduce", self.reducer().name(), "evict, with append-only");
        }
        if self.store().repacks_entries() {
            return Err(Error::StoreMismatch {
                policy: self.name.clone(),
                stage: "the append-only schedule".into(),
                needs: "entries that are never rewritten",
                store: self.store().name().to_owned(),
            });
        }
        let Some(budget @ Budget::Tokens(tokens)) = self.budget else { return Ok(()) };
        let least = append.least(self.protect.sinks);
        if tokens < least {
            let must_be = format!(
                "at least {least}: the pages of {} sinks, a page of {} and the {} new tokens kept",
                self.protect.sinks, append.page, append.keep
            );
            return check::refuse("budget", budget, must_be);
        }
        Ok(())
    }

    /// Checks that the store fits the other stages. A store that pads heads to the longest, or
    /// copies shared entries for each token, would take the memory that those stages have freed.
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
        if self.reducer().makes_clusters() && !store.holds_clusters() {
            return fail(self.reducer().name(), "entries that tokens share");
        }
        if store.needs_encoded_keys() && self.positions != PositionMode::Written {
            return fail("positions", "keys whose positions are not encoded");
        }
        Ok(())
    }

    /// Checks that the policy fits a cache of this shape: its store, and the profile it reads.
    ///
    /// # Errors
    /// [`Error::ProfileMissing`], [`Error::ProfileShape`], [`Error::InvalidProfile`] or
    /// [`Error::InvalidParameter`].
    pub fn check_shape(&self, shape: CacheShape) -> Result<()> {
        self.store().check_shape(shape)?;
        self.sparse_prefill().map_or(Ok(()), |prefill| prefill.check_shape(shape))?;
        if let Some(profile) = self.profile() {
            profile.check()?;
            self.sparse_prefill().map_or(Ok(()), |prefill| prefill.check_profile(profile))?;
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
        if self.reads_profile() {
            return missing("sparse prefill", "profile");
        }
        Ok(())
    }

    /// Checks that a budget of so many tokens holds what is protected, and leaves the scores
    /// something to choose.
    pub(super) fn check_tokens(&self, budget: Budget, tokens: usize) -> Result<()> {
        let Protect { sinks, .. } = self.protect;
        let recent = self.protect.recent_tokens(tokens);
        let protected = sinks.saturating_add(recent);
        if protected > tokens {
            return Err(Error::BudgetTooSmall { budget, tokens, sinks, recent });
        }
        if protected == tokens && self.scores_choose() {
            let policy = self.name.clone();
            return Err(Error::BudgetAllProtected { policy, budget, tokens, sinks, recent });
        }
        Ok(())
    }

    /// Whether the scores choose entries by more than their position: recency keeps the last ones,
    /// as the protection of recent tokens does.
    pub(super) fn scores_choose(&self) -> bool {
        let scorer: &dyn Any = self.scorer();
        !scorer.is::<Recency>()
    }

    /// Refuses a setter that did not apply to the policy, which is a mistake of the caller.
    pub(super) fn check_setters(&self) -> Result<()> {
        let Some(mismatch) = &self.mismatch else { return Ok(()) };
        Err(Error::SetterMismatch {
            policy: self.name.clone(),
            setter: mismatch.setter,
            has: mismatch.has.clone(),
        })
    }
}
