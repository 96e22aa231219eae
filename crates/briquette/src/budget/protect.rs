use serde::{Deserialize, Serialize};

use crate::{Result, check};

/// Entries that a policy keeps whatever their scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Protect {
    /// Number of first tokens (attention sinks), counted from the first one still held.
    pub sinks: usize,
    /// Last tokens.
    pub recent: Recent,
}

/// Number of last tokens that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Recent {
    /// A number of tokens.
    Tokens(usize),
    /// A share of the budget, rounded down.
    Share(f64),
    /// Heavy hitters and last tokens in the proportion N : M. Of the budget without the first
    /// tokens, the last tokens get M of every N + M, rounded down.
    HeavyToRecent(usize, usize),
}

impl Default for Recent {
    fn default() -> Self {
        Self::Tokens(0)
    }
}

impl Recent {
    /// Returns the number of last tokens under a budget of `budget` tokens, of which the first
    /// `sinks` are kept too.
    pub fn tokens(&self, budget: usize, sinks: usize) -> usize {
        match *self {
            Self::Tokens(tokens) => tokens,
            Self::Share(share) => (budget as f64 * share) as usize,
            Self::HeavyToRecent(heavy, recent) => {
                let rest = budget.saturating_sub(sinks);
                let parts = heavy.saturating_add(recent).max(1);
                // Whole parts first: their product with `recent` is no more than the rest.
                rest / parts * recent + rest % parts * recent / parts
            }
        }
    }
}

impl Protect {
    pub(crate) fn check(&self) -> Result<()> {
        match self.recent {
            Recent::Share(share) => check::share("protect.recent.share", share),
            Recent::HeavyToRecent(heavy, recent) => {
                check::count("protect.recent.heavy-to-recent", heavy.saturating_add(recent))
            }
            Recent::Tokens(_) => Ok(()),
        }
    }

    /// Checks that no more is protected than a cache can hold.
    pub(crate) fn check_columns(&self) -> Result<()> {
        check::columns("protect.sinks", self.sinks)?;
        match self.recent {
            Recent::Tokens(recent) => check::columns("protect.recent.tokens", recent),
            Recent::HeavyToRecent(heavy, recent) => {
                check::columns("protect.recent.heavy-to-recent", heavy.max(recent))
            }
            Recent::Share(_) => Ok(()),
        }
    }

    /// Returns the number of last tokens kept under a budget of `budget` tokens.
    pub fn recent_tokens(&self, budget: usize) -> usize {
        self.recent.tokens(budget, self.sinks)
    }

    /// Minimum budget, in tokens, that holds the protected ones.
    pub(crate) fn least(&self) -> usize {
        match self.recent {
            Recent::Tokens(recent) => self.sinks.saturating_add(recent),
            // A share of the budget shrinks with it, so it always fits beside the sinks.
            Recent::Share(_) | Recent::HeavyToRecent(..) => self.sinks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_to_one_of_what_the_first_leave() {
        let recent = |budget| Recent::HeavyToRecent(3, 1).tokens(budget, 4);
        // 8 is 6 : 2, 11 is 9 : 2, and below the first tokens nothing is left.
        assert_eq!([12, 15, 16, 4, 2].map(recent), [2, 2, 3, 0, 0]);
        for budget in 4..400 {
            assert_eq!(recent(budget), (budget - 4) / 4, "{budget}");
        }
        assert_eq!(Recent::HeavyToRecent(1, 3).tokens(usize::MAX, 3), usize::MAX / 4 * 3);
    }
}
