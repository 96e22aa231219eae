use std::{fmt, str::FromStr};

use briquette::Budget;
use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};

/// A budget in a run file: as on the command line, `"64"`, `64`, `"25%"`, `"512KiB"`, or what the
/// cache is to hold, `"held 25%"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RunBudget {
    /// As it is given to the policy.
    Given(Budget),
    /// The largest whose cache holds at most this share of the full cache's bytes, found on the
    /// first prompt of each task and length.
    Held(f64),
}

/// Before a share of the bytes.
const HELD: &str = "held ";

impl RunBudget {
    /// The budget that a policy is checked with: for a share of the bytes, the same share of the
    /// tokens.
    pub(super) fn budget(self) -> Budget {
        match self {
            Self::Given(budget) => budget,
            Self::Held(share) => Budget::Ratio(share),
        }
    }

    /// The share of the full cache's bytes that it is to hold.
    pub(super) fn held(self) -> Option<f64> {
        match self {
            Self::Given(_) => None,
            Self::Held(share) => Some(share),
        }
    }
}

impl fmt::Display for RunBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.held().is_some() { HELD } else { "" })?;
        self.budget().fmt(f)
    }
}

impl FromStr for RunBudget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let of = |text: &str| text.parse::<Budget>().map_err(|error| error.to_string());
        match text.trim().strip_prefix(HELD) {
            None => of(text).map(Self::Given),
            Some(share) => match of(share)? {
                Budget::Ratio(share) => Ok(Self::Held(share)),
                other => Err(format!(
                    "`{text}`: what is held is a share of the full cache's bytes, as `held 25%`, and not {other}"
                )),
            },
        }
    }
}

struct Text;

impl Visitor<'_> for Text {
    type Value = RunBudget;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a budget: \"256\" (tokens), \"25%\" (of the tokens seen), \"512KiB\" or \"held 25%\" (of the bytes)",
        )
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<RunBudget, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, tokens: i64) -> Result<RunBudget, E> {
        self.visit_str(&tokens.to_string())
    }

    fn visit_u64<E: Error>(self, tokens: u64) -> Result<RunBudget, E> {
        self.visit_str(&tokens.to_string())
    }
}

impl<'de> Deserialize<'de> for RunBudget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_bytes_is_told_from_one_of_the_tokens() {
        let read = |text: &str| text.parse::<RunBudget>();
        assert_eq!(read("25%"), Ok(RunBudget::Given(Budget::Ratio(0.25))));
        assert_eq!(read("held 25%"), Ok(RunBudget::Held(0.25)));
        assert_eq!(RunBudget::Held(0.25).to_string(), "held 25%");
        for (wrong, says) in [("held 64", "and not 64"), ("held", "held"), ("held 0%", "above 0")] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
