//! Successive halving: many candidates on little, few on much.

use serde::Serialize;

/// Of how many that run in a round one stays.
const KEEP_ONE_OF: usize = 3;
/// As many stay at least, to be compared on all windows.
const FINALISTS: usize = 3;
/// Windows of the first round at least: one has no spread.
const FIRST: usize = 2;

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Round {
    /// Candidates that take part.
    pub candidates: usize,
    /// Windows they have been measured on at its end, those of the rounds before counted.
    pub windows: usize,
}

/// The rounds for so many candidates and windows: each round has a third of the candidates of the
/// one before, but at least 3, and three times the windows; the last has all windows, the first at
/// least 2.
pub fn rounds(candidates: usize, windows: usize) -> Vec<Round> {
    let mut eliminations = 0;
    let (mut left, mut first) = (candidates, windows);
    while left > FINALISTS && first.div_ceil(KEEP_ONE_OF) >= FIRST {
        left = left.div_ceil(KEEP_ONE_OF);
        first = first.div_ceil(KEEP_ONE_OF);
        eliminations += 1;
    }
    let mut windows_of = vec![windows];
    for _ in 0..eliminations {
        let more = windows_of[windows_of.len() - 1];
        windows_of.push(more.div_ceil(KEEP_ONE_OF));
    }
    let mut candidates_of = candidates;
    let round = |windows| {
        let round = Round { candidates: candidates_of, windows };
        candidates_of = candidates_of.div_ceil(KEEP_ONE_OF).max(FINALISTS.min(candidates_of));
        round
    };
    windows_of.into_iter().rev().map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(candidates: usize, windows: usize) -> Vec<(usize, usize)> {
        let rounds = rounds(candidates, windows);
        rounds.into_iter().map(|Round { candidates, windows }| (candidates, windows)).collect()
    }

    #[test]
    fn thirds_go_on_to_three_times_the_windows() {
        assert_eq!(of(45, 18), [(45, 2), (15, 6), (5, 18)]);
        assert_eq!(of(50, 12), [(50, 2), (17, 4), (6, 12)]);
        assert_eq!(of(7, 12), [(7, 4), (3, 12)]);
        // Four make three, three make nothing less.
        assert_eq!(of(4, 100), [(4, 34), (3, 100)]);
        assert_eq!(of(3, 9), [(3, 9)]);
        assert_eq!(of(1, 9), [(1, 9)]);
        // Too few windows for a round before.
        assert_eq!(of(45, 3), [(45, 3)]);
        assert_eq!(of(45, 1), [(45, 1)]);
    }

    #[test]
    fn it_costs_less_than_everything_on_everything() {
        for candidates in 1..200 {
            for windows in 1..60 {
                let rounds = rounds(candidates, windows);
                let mut before = 0;
                let mut cost = 0;
                for round in &rounds {
                    assert!(round.windows >= before && round.candidates > 0);
                    cost += round.candidates * (round.windows - before);
                    before = round.windows;
                }
                assert_eq!((rounds[0].candidates, before), (candidates, windows));
                assert!(cost <= candidates * windows, "{candidates} {windows} {rounds:?}");
            }
        }
    }
}
