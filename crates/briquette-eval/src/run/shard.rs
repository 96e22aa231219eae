use std::{fmt, str::FromStr};

use crate::{Error, Result, record::Key, tasks::seed};

/// One of `count` parts of a plan, that machines run beside each other.
///
/// A sample belongs to one part, with every policy and question, so that what the policies share is
/// computed once. Which one depends on nothing but the sample: a plan that grows moves none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: u64,
    count: u64,
}

impl Shard {
    /// The part `index` of `count`, the first is 1.
    ///
    /// # Errors
    /// [`Error::Shard`] for an index outside 1..=`count`.
    pub fn new(index: u64, count: u64) -> Result<Self> {
        if index == 0 || index > count {
            return Err(Error::Shard { text: format!("{index}/{count}") });
        }
        Ok(Self { index, count })
    }

    /// Whether a unit belongs to it.
    pub fn holds(self, key: &Key) -> bool {
        let Key { model, seed, task, sample, .. } = key;
        let name = format!("{model}\0{seed}\0{task}\0{sample}");
        mixed(seed::hash(name.into_bytes())) % self.count == self.index - 1
    }
}

/// The low bits of FNV-1a follow the last bytes; the finalizer of `MurmurHash3` spreads them.
fn mixed(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl Shard {
    /// The name of its results in the folder of a run.
    pub fn file_name(self) -> String {
        format!("results-{}-of-{}.jsonl", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fail = || Error::Shard { text: text.into() };
        let (index, count) = text.split_once('/').ok_or_else(fail)?;
        let number = |text: &str| text.trim().parse().map_err(|_| fail());
        Self::new(number(index)?, number(count)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::plan::no_sample;

    fn key(sample: usize, policy: &str) -> Key {
        let sample = format!("length=512,depth=50,sample={sample}");
        Key { task: "needle".into(), sample, ..no_sample("m", policy, "64", None) }
    }

    #[test]
    fn every_sample_is_in_one_part_whatever_the_policy() {
        for count in [1, 2, 3, 7] {
            let mut sizes = vec![0; count];
            for sample in 0..700 {
                let holders = |policy| -> Vec<u64> {
                    let shard = |i: &u64| Shard::new(*i, count as u64).unwrap();
                    (1..=count as u64).filter(|i| shard(i).holds(&key(sample, policy))).collect()
                };
                let [holder] = holders("h2o")[..] else { panic!("{sample} of {count}") };
                assert_eq!(holders("snapkv"), [holder]);
                sizes[holder as usize - 1] += 1;
            }
            // Five standard deviations of a binomial.
            let mean = 700.0 / count as f64;
            let spread = 5.0 * (mean * (1.0 - 1.0 / count as f64)).sqrt();
            assert!(
                sizes.iter().all(|size| (f64::from(*size) - mean).abs() <= spread),
                "{sizes:?}"
            );
        }
    }

    #[test]
    fn texts_are_read_or_refused() {
        let shard: Shard = "2/3".parse().unwrap();
        assert_eq!(shard, Shard::new(2, 3).unwrap());
        assert_eq!(
            (shard.to_string(), shard.file_name()),
            ("2/3".into(), "results-2-of-3.jsonl".into())
        );
        for text in ["", "2", "0/3", "4/3", "1/0", "a/b", "1/2/3", "-1/2"] {
            let error = text.parse::<Shard>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("1/4"), "{error}");
        }
    }
}
