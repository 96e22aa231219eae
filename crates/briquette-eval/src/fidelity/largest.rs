//! The largest budget that holds a target.

use std::collections::BTreeMap;

use briquette::{Budget, Error as Refusal, Policy};

use super::reference::Reference;
use crate::{Error, Result, record::CacheBytes};

/// Result of trying one budget.
#[derive(Clone, Debug, PartialEq)]
pub enum Probe {
    /// It is too small for the policy, and why.
    Refused(String),
    /// The cache holds this share of the full one.
    Held(f64),
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub enum Largest {
    /// This budget holds the share, and the next larger one more than the target.
    Size(usize, f64),
    /// The smallest that the policy takes holds this share, more than the target.
    TooMuch(usize, f64),
    /// The policy takes none of them: why it refuses the largest.
    Refused(String),
}

/// The largest size in `1..=most` whose cache holds at most `target`. `probe` is taken to refuse
/// sizes below some limit, and to grow with the size above it; `hint` is where to look first. Few
/// probes are needed where the share is a line over the size, as it nearly is.
///
/// # Errors
/// Errors of `probe`.
pub fn largest(
    most: usize,
    target: f64,
    hint: Option<usize>,
    mut probe: impl FnMut(usize) -> Result<Probe>,
) -> Result<Largest> {
    // Sizes up to `low` fit or are refused, those from `high` on hold too much.
    let (mut low, mut high) = (0, most + 1);
    let (mut fits, mut refused, mut least_held) = (None, None, None);
    let mut seen: Vec<(usize, f64)> = Vec::new();
    let mut probes = 0;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let guess = match seen.as_slice() {
            _ if probes > 6 => middle,
            [] if probes > 0 => middle,
            [] => hint.unwrap_or((target * most as f64) as usize),
            [.., a, b] => on_line(*a, *b, target).unwrap_or(middle),
            [(size, share)] => (*size as f64 * target / share) as usize,
        };
        let size = guess.clamp(low + 1, high - 1);
        probes += 1;
        match probe(size)? {
            Probe::Refused(reason) => {
                (low, refused) = (size, Some(reason));
            }
            Probe::Held(share) => {
                seen.push((size, share));
                if share <= target {
                    (low, fits) = (size, Some((size, share)));
                } else {
                    (high, least_held) = (size, Some((size, share)));
                }
            }
        }
    }
    Ok(match (fits, least_held, refused) {
        (Some((size, share)), ..) => Largest::Size(size, share),
        (None, Some((size, share)), _) => Largest::TooMuch(size, share),
        (None, None, Some(reason)) => Largest::Refused(reason),
        (None, None, None) => Largest::Refused("there is no budget to try".into()),
    })
}

impl Reference<'_> {
    /// The [`largest()`] budget of a policy in this window, of those that `budget` makes of a size
    /// in `1..=most`, with the memory that it holds.
    pub(crate) fn largest_budget(
        &self,
        policy: &Policy,
        budget: impl Fn(usize) -> Budget,
        most: usize,
        target: f64,
        hint: Option<usize>,
    ) -> Result<(Largest, Option<CacheBytes>)> {
        let mut measured = BTreeMap::new();
        let probe = |size: usize| {
            let policy = policy.clone().with_budget(budget(size));
            if let Err(error) = policy.check() {
                return Ok(Probe::Refused(error.to_string()));
            }
            match self.held(policy) {
                Ok(held) => {
                    measured.insert(size, held);
                    Ok(Probe::Held(held.kept_of_full()))
                }
                // A budget too small for what a stage must keep is found out by the cache.
                Err(Error::Cache(
                    error @ (Refusal::BudgetTooSmall { .. }
                    | Refusal::BudgetAllProtected { .. }
                    | Refusal::MergeBudget { .. }),
                )) => Ok(Probe::Refused(error.to_string())),
                Err(error) => Err(error),
            }
        };
        let found = largest(most, target, hint, probe)?;
        let held = match &found {
            Largest::Size(size, _) | Largest::TooMuch(size, _) => measured.get(size).copied(),
            Largest::Refused(_) => None,
        };
        Ok((found, held))
    }
}

/// Where the line through two points reaches the target, rounded down.
fn on_line(a: (usize, f64), b: (usize, f64), target: f64) -> Option<usize> {
    let slope = (b.1 - a.1) / (b.0 as f64 - a.0 as f64);
    let size = a.0 as f64 + (target - a.1) / slope;
    (slope > 0.0 && size.is_finite()).then_some(size.max(0.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result, and the sizes tried.
    fn search(
        most: usize,
        target: f64,
        hint: Option<usize>,
        share: impl Fn(usize) -> Probe,
    ) -> (Largest, Vec<usize>) {
        let mut tried = Vec::new();
        let probe = |size| {
            tried.push(size);
            Ok(share(size))
        };
        let found = largest(most, target, hint, probe).unwrap();
        assert!(tried.iter().all(|size| (1..=most).contains(size)), "{tried:?}");
        (found, tried)
    }

    #[test]
    fn a_line_takes_few_probes() {
        // 64 columns of room beside the budget, 4 bytes more than a full entry of 128.
        let share = |size: usize| Probe::Held((size + 64) as f64 * 132.0 / (1024.0 * 128.0));
        let (found, tried) = search(1024, 0.25, None, share);
        let Largest::Size(size, held) = found else { panic!("{found:?}") };
        assert_eq!(size, 184);
        assert!(held <= 0.25 && share(185) != share(184));
        assert!(tried.len() <= 5, "{tried:?}");
        let (again, tried) = search(1024, 0.25, Some(184), share);
        assert_eq!(again, Largest::Size(184, held));
        assert!(tried.len() <= 3, "{tried:?}");
    }

    type Curve = fn(usize) -> f64;

    #[test]
    fn any_curve_that_grows_is_searched() {
        let curves: [(&str, Curve); 4] = [
            ("steps", |size| (size / 50) as f64 * 0.1),
            ("square", |size| (size as f64 / 1000.0).powi(2)),
            ("root", |size| (size as f64 / 1000.0).sqrt()),
            ("flat", |_| 0.05),
        ];
        for (name, curve) in curves {
            for target in [0.06, 0.1, 0.5] {
                for hint in [None, Some(1), Some(990)] {
                    let (found, tried) =
                        search(1000, target, hint, |size| Probe::Held(curve(size)));
                    let by_hand = (1..=1000).rev().find(|size| curve(*size) <= target).unwrap();
                    assert_eq!(found, Largest::Size(by_hand, curve(by_hand)), "{name} {target}");
                    assert!(tried.len() < 20, "{name} {tried:?}");
                }
            }
        }
    }

    #[test]
    fn what_cannot_hold_says_why() {
        let refuse_below = |least: usize, share: f64| {
            move |size: usize| match size {
                size if size < least => Probe::Refused(format!("{size} is below {least}")),
                size => Probe::Held(share + size as f64 / 1000.0),
            }
        };
        let (found, _) = search(1000, 0.2, None, refuse_below(32, 0.1));
        assert_eq!(found, Largest::Size(100, 0.2));
        let (found, _) = search(1000, 0.1, None, refuse_below(32, 0.1));
        assert_eq!(found, Largest::TooMuch(32, 0.1 + 0.032));
        let (found, _) = search(16, 0.1, None, refuse_below(32, 0.0));
        assert_eq!(found, Largest::Refused("16 is below 32".into()));
    }
}
