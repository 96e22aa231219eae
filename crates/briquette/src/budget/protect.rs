use serde::{Deserialize, Serialize};

use crate::{Result, check};

/// The entries a policy keeps whatever their scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Protect {
    /// The first so many tokens still held (attention sinks).
    pub sinks: usize,
    /// The last tokens.
    pub recent: Recent,
}

/// How many of the last tokens are kept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recent {
    /// So many.
    Tokens(usize),
    /// So large a share of the budget, rounded down.
    Share(f64),
}

impl Default for Recent {
    fn default() -> Self {
        Self::Tokens(0)
    }
}

impl Recent {
    /// Tokens under a budget of `budget` tokens.
    pub fn tokens(&self, budget: usize) -> usize {
        match *self {
            Self::Tokens(tokens) => tokens,
            Self::Share(share) => (budget as f64 * share) as usize,
        }
    }
}

impl Protect {
    pub(crate) fn check(&self) -> Result<()> {
        match self.recent {
            Recent::Share(share) => check::share("protect.recent.share", share),
            Recent::Tokens(_) => Ok(()),
        }
    }

    /// That no more is protected than a cache can hold.
    pub(crate) fn check_columns(&self) -> Result<()> {
        check::columns("protect.sinks", self.sinks)?;
        match self.recent {
            Recent::Tokens(recent) => check::columns("protect.recent.tokens", recent),
            Recent::Share(_) => Ok(()),
        }
    }

    /// The fewest tokens that hold what is protected.
    pub(crate) fn least(&self) -> usize {
        match self.recent {
            Recent::Tokens(recent) => self.sinks.saturating_add(recent),
            // A share of the budget shrinks with it, so it always fits beside the sinks.
            Recent::Share(_) => self.sinks,
        }
    }
}
