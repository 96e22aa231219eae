//! Which records of a file become samples.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    path::Path,
};

use rand::Rng;
use serde::de::DeserializeOwned;

use super::{
    prompt::Case,
    read::{self, Checked},
};
use crate::{
    Error, Result,
    tasks::{Sample, Samples, seed},
};

/// Which file, and which of its records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) task: &'static str,
    pub(super) path: &'a Path,
    /// So many, drawn by the seed; all, in the order of the file, if `None`.
    pub(super) samples: Option<usize>,
    pub(super) skip_damaged: bool,
    /// Whether the records stand under `data` of a JSON object.
    pub(super) under_data: bool,
}

#[derive(Debug)]
pub(super) struct Chosen<T> {
    pub(super) items: Vec<T>,
    pub(super) skipped: Vec<String>,
}

impl<T> Chosen<T> {
    pub(super) fn samples(self, sample: impl FnMut(T) -> Result<Sample>) -> Result<Samples> {
        let samples = self.items.into_iter().map(sample).collect::<Result<Vec<Sample>>>()?;
        Ok(Samples { samples, skipped: self.skipped })
    }
}

impl Source<'_> {
    /// Draws records. `add` receives each with its number in the file, from 1, and hands it on to
    /// the draw or says what is wrong with it.
    pub(super) fn choose<R: DeserializeOwned, T>(
        &self,
        seed: u64,
        mut add: impl FnMut(&mut Draw<T>, usize, R) -> Checked<()>,
    ) -> Result<Chosen<T>> {
        if self.samples == Some(0) {
            let reason = "at least 1 is needed".into();
            return Err(Error::TaskParameter { task: self.task, parameter: "samples", reason });
        }
        let mut draw = Draw::new(self.samples, seed);
        let mut skipped = Vec::new();
        let mut number = 0;
        let each = |line, record: Checked<R>| {
            number += 1;
            let Err(message) = record.and_then(|record| add(&mut draw, number, record)) else {
                return Ok(());
            };
            let damaged = Error::DataLine { path: self.path.into(), line, message };
            if !self.skip_damaged {
                return Err(damaged);
            }
            skipped.push(damaged.to_string());
            Ok(())
        };
        match self.under_data {
            true => read::records_under_data(self.path, each)?,
            false => read::records(self.path, each)?,
        }
        let (asked, found) = (self.samples.unwrap_or(1), draw.seen);
        if found < asked {
            return Err(Error::TooFewSamples { path: self.path.into(), asked, found });
        }
        Ok(Chosen { items: draw.kept.into_values().collect(), skipped })
    }
}

/// The first records in an order that the seed shuffles. Every number has its own place in that
/// order, so no more records are held than wanted, and a damaged record moves no other.
#[derive(Debug)]
pub(super) struct Draw<T> {
    wanted: Option<usize>,
    seed: u64,
    kept: BTreeMap<(u64, usize), T>,
    /// The number of the record with each name.
    numbers: HashMap<String, usize>,
    seen: usize,
}

/// Fate of the record with a name.
pub(super) enum Earlier<'a, T> {
    /// There was none.
    None,
    /// It is among those drawn so far.
    Kept(&'a mut T),
    /// It is not drawn.
    Passed,
}

impl<T> Draw<T> {
    fn new(wanted: Option<usize>, seed: u64) -> Self {
        Self { wanted, seed, kept: BTreeMap::new(), numbers: HashMap::new(), seen: 0 }
    }

    /// Offers a record. Its name tells it from all others.
    pub(super) fn offer(&mut self, number: usize, name: String, item: T) -> Checked<()> {
        match self.numbers.entry(name) {
            Entry::Occupied(earlier) => {
                let (name, number) = (earlier.key(), earlier.get());
                return Err(format!("`{name}` is the name of record {number} too"));
            }
            Entry::Vacant(name) => name.insert(number),
        };
        self.seen += 1;
        self.kept.insert(self.place(number), item);
        if self.wanted.is_some_and(|wanted| self.kept.len() > wanted) {
            self.kept.pop_last();
        }
        Ok(())
    }

    /// The record of this name, if there was one.
    pub(super) fn earlier(&mut self, name: &str) -> Earlier<'_, T> {
        let Some(&number) = self.numbers.get(name) else { return Earlier::None };
        match self.kept.get_mut(&self.place(number)) {
            Some(item) => Earlier::Kept(item),
            None => Earlier::Passed,
        }
    }

    fn place(&self, number: usize) -> (u64, usize) {
        match self.wanted {
            Some(_) => (seed::rng(&[self.seed, number as u64]).next_u64(), number),
            None => (0, number),
        }
    }
}

impl Draw<Case> {
    /// Offers a case, which its id tells from all others.
    pub(super) fn offer_case(&mut self, number: usize, case: Case) -> Checked<()> {
        self.offer(number, case.id.clone(), case)
    }
}

impl<T> Chosen<Vec<T>> {
    /// Splits records that make several samples into one item per sample.
    pub(super) fn flatten(self) -> Chosen<T> {
        let Self { items, skipped } = self;
        Chosen { items: items.into_iter().flatten().collect(), skipped }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, fs};

    use super::*;

    /// The numbers drawn of so many records, some of which are damaged.
    fn drawn(records: usize, damaged: &[usize], samples: Option<usize>, seed: u64) -> Vec<usize> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let line = |n: usize| if damaged.contains(&n) { "?\n".into() } else { format!("{n}\n") };
        fs::write(&path, (1..=records).map(line).collect::<String>()).unwrap();
        let (task, path) = ("numbers", &path);
        let source = Source { task, path, samples, skip_damaged: true, under_data: false };
        let chosen = source
            .choose(seed, |draw, number, record: usize| {
                assert_eq!(record, number);
                draw.offer(number, number.to_string(), record)
            })
            .unwrap();
        assert_eq!(chosen.skipped.len(), damaged.len());
        chosen.items
    }

    #[test]
    fn all_come_in_the_order_of_the_file() {
        assert_eq!(drawn(5, &[], None, 3), [1, 2, 3, 4, 5]);
        assert_eq!(drawn(5, &[2], None, 3), [1, 3, 4, 5]);
    }

    #[test]
    fn a_draw_follows_the_seed_and_a_larger_one_continues_it() {
        let ten = drawn(100, &[], Some(10), 7);
        assert_eq!(drawn(100, &[], Some(10), 7), ten);
        assert_ne!(drawn(100, &[], Some(10), 8), ten);
        assert_eq!(drawn(100, &[], Some(40), 7)[..10], ten);
        let all: HashSet<usize> = drawn(100, &[], Some(100), 7).into_iter().collect();
        assert_eq!(all.len(), 100);
        // Without one that was not drawn nothing changes; without the first the others move up.
        let other = (1..=100).find(|number| !ten.contains(number)).unwrap();
        assert_eq!(drawn(100, &[other], Some(10), 7), ten);
        assert_eq!(drawn(100, &[ten[0]], Some(9), 7), ten[1..]);
    }

    #[test]
    fn every_record_is_drawn_as_often() {
        let mut counts = [0; 10];
        for seed in 0..300 {
            for number in drawn(10, &[], Some(3), seed) {
                counts[number - 1] += 1;
            }
        }
        // 90 expected, with a standard deviation of 8.
        assert!(counts.iter().all(|count| (60..=120).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_name_belongs_to_one_record() {
        let mut draw = Draw::new(Some(1), 0);
        for number in 1..=5 {
            draw.offer(number, number.to_string(), number).unwrap();
        }
        let error = draw.offer(6, "4".into(), 6).unwrap_err();
        assert_eq!(error, "`4` is the name of record 4 too");
        assert!(matches!(draw.earlier("6"), Earlier::None));
        let kept = *draw.kept.values().next().unwrap();
        for number in 1..=5 {
            match draw.earlier(&number.to_string()) {
                Earlier::Kept(item) => assert_eq!((*item, number), (kept, kept)),
                Earlier::Passed => assert_ne!(number, kept),
                Earlier::None => panic!("{number}"),
            }
        }
    }
}
