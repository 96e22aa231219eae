//! Words, numbers and UUIDs that things are hidden under.

use std::collections::HashSet;

use rand::{RngExt, seq::index};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use uuid::Builder;

use crate::{
    Error, Result,
    tasks::{assemble, needle},
};

/// Kind of a key or a value (RULER's `type_needle_k` and `type_needle_v`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Words the embedded model never saw in a needle; more than 64 are pairs of them, joined with
    /// a hyphen.
    #[default]
    Words,
    /// Numbers of seven digits.
    Numbers,
    /// Random UUIDs (version 4).
    Uuids,
}

impl Kind {
    /// One of them, in a prompt.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Words => "word",
            Self::Numbers => "number",
            Self::Uuids => "uuid",
        }
    }
}

/// Words of the list, alone or joined. None contains another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Single,
    Pairs,
}

impl List {
    /// The one with `count` words, single ones if they do.
    pub(super) fn holding(task: &'static str, count: usize) -> Result<Self> {
        match count {
            _ if count <= Self::Single.len() => Ok(Self::Single),
            _ if count <= Self::Pairs.len() => Ok(Self::Pairs),
            _ => Err(Self::too_many(task, count)),
        }
    }

    pub(super) fn too_many(task: &'static str, wanted: usize) -> Error {
        Error::TooManyWords { task, wanted, words: Self::Pairs.len() }
    }

    pub(super) fn len(self) -> usize {
        let single = needle::words().count();
        match self {
            Self::Single => single,
            Self::Pairs => single * (single - 1),
        }
    }

    /// `count` different words, at most [`Self::len`].
    pub(super) fn draw(self, count: usize, rng: &mut ChaCha8Rng) -> Vec<String> {
        let single: Vec<&str> = needle::words().collect();
        let drawn = index::sample(rng, self.len(), count).into_iter();
        let others = single.len() - 1;
        drawn
            .map(|i| match self {
                Self::Single => single[i].to_owned(),
                Self::Pairs => {
                    let (first, second) = (i / others, i % others);
                    let second = second + usize::from(second >= first);
                    format!("{}-{}", single[first], single[second])
                }
            })
            .collect()
    }
}

#[derive(Debug)]
pub(super) struct Names {
    words: Vec<String>,
    next: usize,
    /// Words given out once only, also when the others begin again.
    once: usize,
    taken: HashSet<String>,
}

impl Names {
    /// With words for `once` names, each given out once, and `further` that begin again when they
    /// are used up.
    pub(super) fn new(
        task: &'static str,
        once: usize,
        further: usize,
        rng: &mut ChaCha8Rng,
    ) -> Result<Self> {
        let further = further.min(List::Pairs.len().saturating_sub(once));
        let words = List::holding(task, once + further)?.draw(once + further, rng);
        Ok(Self { words, next: 0, once, taken: HashSet::new() })
    }

    pub(super) fn draw(&mut self, kind: Kind, rng: &mut ChaCha8Rng) -> String {
        match kind {
            Kind::Words => {
                if self.next == self.words.len() {
                    self.next = self.once;
                }
                let word = self.words.get(self.next).cloned().unwrap_or_default();
                self.next += 1;
                word
            }
            Kind::Numbers => untaken(&mut self.taken, || assemble::digits(rng, needle::DIGITS)),
            Kind::Uuids => uuid(rng),
        }
    }
}

/// The first of these names that was not taken before. It is taken now.
pub(super) fn untaken(taken: &mut HashSet<String>, mut name: impl FnMut() -> String) -> String {
    loop {
        let name = name();
        if taken.insert(name.clone()) {
            return name;
        }
    }
}

/// A word of so many random letters of the alphabet that begins at `first`.
pub(super) fn letters(rng: &mut ChaCha8Rng, first: u8, count: usize) -> String {
    (0..count).map(|_| char::from(first + rng.random_range(0..26_u8))).collect()
}

pub(super) fn uuid(rng: &mut ChaCha8Rng) -> String {
    Builder::from_random_bytes(rng.random()).into_uuid().hyphenated().to_string()
}

/// `a`, `a and b` as `a, and b`, `a, b, and c`: RULER's enumeration.
pub(super) fn enumerate(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{}, and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::seed;

    #[test]
    fn words_are_different_and_none_contains_another() {
        for list in [List::Single, List::Pairs] {
            let words = list.draw(list.len(), &mut seed::rng(&[1]));
            let unique: HashSet<&String> = words.iter().collect();
            assert_eq!(unique.len(), list.len());
        }
        assert_eq!((List::Single.len(), List::Pairs.len()), (64, 4032));
        // A pair holds another one only if the end of its first word and the start of its second
        // are words.
        let single = List::Single.draw(64, &mut seed::rng(&[1]));
        for word in &single {
            assert_eq!(single.iter().filter(|other| other.contains(word.as_str())).count(), 1);
        }
    }

    #[test]
    fn more_words_than_there_are_are_refused() {
        assert_eq!(List::holding("x", 64).unwrap(), List::Single);
        assert_eq!(List::holding("x", 65).unwrap(), List::Pairs);
        let error = List::holding("x", 4033).unwrap_err().to_string();
        assert!(error.contains("4033") && error.contains("4032"), "{error}");
    }

    #[test]
    fn further_words_begin_again_but_never_the_first() {
        let rng = &mut seed::rng(&[1]);
        let mut names = Names::new("x", 2, 3, rng).unwrap();
        let drawn: Vec<String> = (0..11).map(|_| names.draw(Kind::Words, rng)).collect();
        assert_eq!(drawn[2..5], drawn[5..8]);
        assert_eq!(drawn[5..8], drawn[8..11]);
        assert!(!drawn[2..].contains(&drawn[0]) && !drawn[2..].contains(&drawn[1]));
    }

    #[test]
    fn uuids_are_random_ones() {
        let text = uuid(&mut seed::rng(&[1]));
        let parsed = uuid::Uuid::parse_str(&text).unwrap();
        assert_eq!((parsed.get_version_num(), text.len()), (4, 36));
    }

    #[test]
    fn names_are_enumerated_as_in_ruler() {
        let cases =
            [(vec!["a"], "a"), (vec!["a", "b"], "a, and b"), (vec!["a", "b", "c"], "a, b, and c")];
        for (names, text) in cases {
            assert_eq!(enumerate(&names), text);
        }
    }
}
