use std::{
    num::{IntErrorKind, ParseIntError},
    str::FromStr,
};

use super::Budget;
use crate::{Error, Result, check};

/// Highest number that a policy file can hold.
const MOST: u64 = i64::MAX as u64;

impl Budget {
    /// Returns the budget of a compression ratio as kvpress counts it, the share of the tokens that
    /// are dropped: 0.75 keeps a quarter.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] for a ratio outside `0 ≤ r < 1`.
    pub fn of_compression_ratio(ratio: f64) -> Result<Self> {
        if !(0.0..1.0).contains(&ratio) {
            return check::refuse("compression_ratio", ratio, "at least 0, below 1");
        }
        // 1 - 0.9 has other last digits than 0.1.
        Ok(Self::Ratio(((1.0 - ratio) * 1e12).round() / 1e12))
    }

    /// Checks that the number is in its range.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] for zero tokens or bytes, or a ratio outside `0 < r ≤ 1`.
    pub fn check(&self) -> Result<()> {
        let (valid, must_be) = match *self {
            Self::Tokens(tokens) => (tokens > 0, "at least 1 token"),
            Self::Ratio(ratio) => (ratio > 0.0 && ratio <= 1.0, "a ratio above 0, at most 1"),
            Self::Bytes(bytes) => (bytes > 0, "at least 1 byte"),
        };
        if valid { Ok(()) } else { check::refuse("budget", self, must_be) }
    }
}

impl FromStr for Budget {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fail = |reason: &str| Error::BudgetText { text: text.into(), reason: reason.into() };
        let trimmed = text.trim();
        let number = |digits: &str| digits.trim().parse::<f64>().map_err(|_| fail("not a number"));
        const UNITS: [(&str, u64); 7] = [
            ("KiB", 1 << 10),
            ("MiB", 1 << 20),
            ("GiB", 1 << 30),
            ("KB", 1_000),
            ("MB", 1_000_000),
            ("GB", 1_000_000_000),
            ("B", 1),
        ];
        let budget = if let Some(ratio) = trimmed.strip_prefix("compression_ratio=") {
            Self::of_compression_ratio(number(ratio)?).map_err(|error| fail(&error.to_string()))?
        } else if let Some(percent) = trimmed.strip_suffix('%') {
            Self::Ratio(number(percent)? / 100.0)
        } else if let Some((digits, unit)) =
            UNITS.iter().find_map(|(suffix, unit)| Some((trimmed.strip_suffix(suffix)?, unit)))
        {
            let bytes = number(digits)? * *unit as f64;
            if !(bytes >= 0.0 && bytes < MOST as f64) {
                return Err(fail(&format!("bytes are above 0 and below {MOST}")));
            }
            Self::Bytes(bytes as u64)
        } else if trimmed.contains('.') {
            Self::Ratio(number(trimmed)?)
        } else {
            let most = || fail(&format!("at most {MOST} tokens can be given"));
            let tokens: u128 =
                trimmed.parse().map_err(|error: ParseIntError| match error.kind() {
                    IntErrorKind::PosOverflow => most(),
                    _ => fail("not a whole number"),
                })?;
            if tokens > MOST.into() {
                return Err(most());
            }
            Self::Tokens(usize::try_from(tokens).map_err(|_| most())?)
        };
        budget.check().map_err(|error| fail(&error.to_string()))?;
        Ok(budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_tokens_ratios_and_bytes() {
        for (text, budget) in [
            ("256", Budget::Tokens(256)),
            ("25%", Budget::Ratio(0.25)),
            ("0.5", Budget::Ratio(0.5)),
            ("512KiB", Budget::Bytes(512 << 10)),
            ("1.5MB", Budget::Bytes(1_500_000)),
            ("100 B", Budget::Bytes(100)),
            ("compression_ratio=0.75", Budget::Ratio(0.25)),
            ("compression_ratio=0.9", Budget::Ratio(0.1)),
        ] {
            assert_eq!(text.parse::<Budget>().unwrap(), budget, "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_budget() {
        for text in [
            "",
            "0",
            "-3",
            "0%",
            "140%",
            "1.5",
            "nan%",
            "KiB",
            "12QB",
            "0.0",
            "compression_ratio=1",
        ] {
            let error = text.parse::<Budget>().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
        let most = "9223372036854775807";
        assert_eq!(most.parse::<Budget>().unwrap(), Budget::Tokens(i64::MAX as usize));
        for text in ["9223372036854775808", "18446744073709551615", &"9".repeat(60)] {
            let error = text.parse::<Budget>().unwrap_err().to_string();
            assert!(error.contains(&format!("at most {most} tokens can be given")), "{error}");
        }
    }

    #[test]
    fn text_form_survives() {
        for (budget, text) in [
            (Budget::Tokens(7), "7"),
            (Budget::Ratio(0.25), "25%"),
            (Budget::Bytes(9), "9B"),
            (Budget::Bytes(512 << 10), "512KiB"),
            (Budget::Bytes(3 << 20), "3MiB"),
            (Budget::Bytes((1 << 30) + 1), "1073741825B"),
        ] {
            assert_eq!(budget.to_string(), text);
            assert_eq!(text.parse::<Budget>().unwrap(), budget);
        }
    }
}
