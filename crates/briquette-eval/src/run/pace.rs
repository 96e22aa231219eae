//! How long the rest of a run takes, by the time that its units took so far.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::plan::Unit;

/// Seconds and tokens of units of one policy and group.
#[derive(Clone, Copy, Default)]
struct Taken {
    seconds: f64,
    tokens: usize,
}

impl Taken {
    fn add(&mut self, seconds: f64, tokens: usize) {
        self.seconds += seconds;
        self.tokens += tokens;
    }

    /// Seconds that so many tokens take, where any were measured.
    fn of(&self, tokens: f64) -> Option<f64> {
        (self.tokens > 0).then(|| self.seconds * tokens / self.tokens as f64)
    }
}

/// The pace of the units that ended in this process. A policy takes its time per token from its own
/// units, so a second pass counts; units that run at once or share a prefill take less of the clock
/// than the sum of their seconds, by a share that is measured as well.
pub(crate) struct Pace {
    began: Instant,
    taken: BTreeMap<(usize, usize), Taken>,
    all: Taken,
    left: BTreeMap<(usize, usize), usize>,
}

impl Pace {
    pub(crate) fn new<'a>(left: impl IntoIterator<Item = &'a Unit>) -> Self {
        let mut tokens = BTreeMap::new();
        for unit in left {
            *tokens.entry((unit.entry, unit.group)).or_default() += unit.tokens;
        }
        Self { began: Instant::now(), taken: BTreeMap::new(), all: Taken::default(), left: tokens }
    }

    /// Counts a unit that took so many seconds, as its record has them.
    pub(crate) fn add(&mut self, unit: &Unit, seconds: f64) {
        let kind = (unit.entry, unit.group);
        self.taken.entry(kind).or_default().add(seconds, unit.tokens);
        self.all.add(seconds, unit.tokens);
        let left = self.left.entry(kind).or_default();
        *left = left.saturating_sub(unit.tokens);
    }

    /// Time until the last of them ends, once a unit has.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.left_after(self.began.elapsed())
    }

    fn left_after(&self, elapsed: Duration) -> Option<Duration> {
        let share = elapsed.as_secs_f64() / self.all.seconds;
        let kinds = self.left.iter().map(|(kind, tokens)| {
            let tokens = *tokens as f64;
            let own = self.taken.get(kind).and_then(|taken| taken.of(tokens));
            own.or_else(|| self.of_policy(kind.0, tokens)).or_else(|| self.all.of(tokens))
        });
        let seconds = kinds.sum::<Option<f64>>()?;
        Duration::try_from_secs_f64(seconds * share).ok()
    }

    /// Seconds of a policy on tokens of another group.
    fn of_policy(&self, entry: usize, tokens: f64) -> Option<f64> {
        let mut taken = Taken::default();
        for one in self.taken.range((entry, 0)..=(entry, usize::MAX)).map(|(_, taken)| taken) {
            taken.add(one.seconds, one.tokens);
        }
        taken.of(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace() -> Pace {
        let left = [((0, 0), 300), ((1, 0), 300), ((2, 0), 100)].into();
        Pace { began: Instant::now(), taken: BTreeMap::new(), all: Taken::default(), left }
    }

    #[test]
    fn a_policy_that_reads_twice_takes_twice_as_long() {
        let mut pace = pace();
        assert_eq!(pace.left_after(Duration::from_secs(1)), None);
        pace.taken.insert((0, 0), Taken { seconds: 1.0, tokens: 100 });
        pace.taken.insert((1, 0), Taken { seconds: 2.0, tokens: 100 });
        pace.all = Taken { seconds: 3.0, tokens: 200 };
        // 3 and 6 seconds, and 1.5 of the policy that is not known yet.
        assert_eq!(pace.left_after(Duration::from_secs(3)), Some(Duration::from_millis(10_500)));
        // Two at a time.
        assert_eq!(
            pace.left_after(Duration::from_millis(1500)),
            Some(Duration::from_millis(5_250))
        );
        // A policy is as fast on a group of its own.
        pace.left.insert((1, 1), 50);
        assert_eq!(pace.left_after(Duration::from_secs(3)), Some(Duration::from_millis(11_500)));
    }
}
