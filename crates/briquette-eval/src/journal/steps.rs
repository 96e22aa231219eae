use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Accept, Journal};
use crate::Result;

/// The results of steps, kept in a [`Journal`] where there is a place for one.
#[derive(Debug)]
pub struct Steps<K, R> {
    journal: Option<Journal>,
    results: BTreeMap<K, R>,
}

#[derive(Serialize, Deserialize)]
struct Line<K, R> {
    step: K,
    result: R,
}

impl<K, R> Steps<K, R>
where
    K: Ord + Serialize + DeserializeOwned,
    R: Serialize + DeserializeOwned,
{
    /// Steps of the journal at `path`, or in memory alone.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open(path: Option<&Path>, settings: &impl Serialize, accept: Accept) -> Result<Self> {
        let Some(path) = path else {
            return Ok(Self { journal: None, results: BTreeMap::new() });
        };
        let (journal, lines) = Journal::open::<Line<K, R>>(path, settings, accept)?;
        let results = lines.into_iter().map(|Line { step, result }| (step, result)).collect();
        Ok(Self { journal: Some(journal), results })
    }

    /// The result of a step, if it is there.
    pub fn get(&self, step: &K) -> Option<&R> {
        self.results.get(step)
    }

    /// Adds the result of a step.
    ///
    /// # Errors
    /// As [`Journal::push`].
    pub fn push(&mut self, step: K, result: R) -> Result<()> {
        let line = Line { step, result };
        if let Some(journal) = &mut self.journal {
            journal.push(&line)?;
        }
        self.results.insert(line.step, line.result);
        Ok(())
    }

    /// As [`Journal::finish`].
    ///
    /// # Errors
    /// As [`Journal::push`].
    pub fn finish(&self) -> Result<()> {
        self.journal.as_ref().map_or(Ok(()), Journal::finish)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_there_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("steps.jsonl");
        let settings = serde_json::json!({ "briquette": "0" });
        let open = |path| Steps::<(String, usize), f32>::open(path, &settings, Accept::default());
        let step = || ("a".to_owned(), 7);
        for (place, kept) in [(None, None), (Some(path.as_path()), Some(&0.1))] {
            let mut steps = open(place).unwrap();
            assert_eq!(steps.get(&step()), None);
            steps.push(step(), 0.1).unwrap();
            steps.finish().unwrap();
            assert_eq!(steps.get(&step()), Some(&0.1));
            drop(steps);
            assert_eq!(open(place).unwrap().get(&step()), kept);
        }
    }
}
