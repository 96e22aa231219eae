use briquette::{
    Budget, Policy,
    cache::store::{Dense, StoreBuilder},
};

use crate::{
    Error, Result,
    tasks::{needle::Place, sample::MOST_SAMPLES},
};

/// Axes of a grid. Every combination is measured.
#[derive(Clone, Debug)]
pub struct Axes {
    /// Lengths in tokens, of a prompt and its answer.
    pub lengths: Vec<usize>,
    /// Depths of the needle asked for, in percent.
    pub depths: Vec<u32>,
    /// Numbers of needles in a prompt.
    pub needles: Vec<usize>,
    /// Prompts for each combination of the above.
    pub samples: usize,
    /// Seed that every prompt is built from.
    pub seed: u64,
    /// The policies, each with its budget. The same prompts are given to all.
    pub entries: Vec<Entry>,
}

/// A policy in a grid.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Label in reports: two policies may be of one method.
    pub label: String,
    /// The policy.
    pub policy: Policy,
}

impl Entry {
    /// The full cache every policy is compared with.
    pub fn full() -> Self {
        Self { label: "full".into(), policy: Policy::full() }
    }

    /// Its budget as text, `-` for a policy that keeps everything.
    pub fn budget(&self) -> String {
        self.policy.budget().map_or_else(|| "-".into(), |budget| budget.to_string())
    }

    /// Whether nothing is ever dropped or rounded, so that it makes no difference when the question
    /// comes.
    pub fn keeps_all(&self) -> bool {
        self.policy.budget().is_none() && self.policy.store().name() == Dense {}.name()
    }

    /// A budget in bytes is for all rows of a batch together, so it says something of one prompt
    /// only when that is alone.
    pub(crate) fn rows_share_budget(&self) -> bool {
        matches!(self.policy.budget(), Some(Budget::Bytes(_)))
    }
}

impl Axes {
    /// # Errors
    /// [`Error::Grid`] for an axis without a value or with the same value twice.
    pub fn check(&self) -> Result<()> {
        let fail = |axis, reason: &str| Err(Error::Grid { axis, reason: reason.into() });
        for (axis, values) in [
            ("lengths", self.lengths.clone()),
            ("depths", self.depths.iter().map(|depth| *depth as usize).collect()),
            ("needles", self.needles.clone()),
        ] {
            if values.is_empty() {
                return fail(axis, "no value given");
            }
            if (1..values.len()).any(|i| values[..i].contains(&values[i])) {
                return fail(axis, "a value is given twice");
            }
        }
        if self.samples == 0 {
            return fail("samples", "at least 1 is needed");
        }
        if self.samples > MOST_SAMPLES {
            return fail("samples", &format!("at most {MOST_SAMPLES} can be made"));
        }
        if self.entries.is_empty() {
            return fail("policies", "no policy given");
        }
        let name = |entry: &Entry| (entry.label.clone(), entry.budget());
        for (i, entry) in self.entries.iter().enumerate() {
            if self.entries[..i].iter().any(|other| name(other) == name(entry)) {
                let reason =
                    format!("`{}` with budget {} is given twice", entry.label, entry.budget());
                return Err(Error::Grid { axis: "policies", reason });
            }
        }
        Ok(())
    }

    /// Prompts that one policy answers.
    pub fn prompts(&self) -> usize {
        self.lengths.len() * self.depths.len() * self.needles.len() * self.samples
    }

    /// Groups of prompts with the same length and number of needles.
    pub(crate) fn groups(&self) -> Vec<Vec<Place>> {
        let mut groups = Vec::new();
        for &needles in &self.needles {
            for &length in &self.lengths {
                let places = (0..self.samples).flat_map(|sample| {
                    self.depths.iter().map(move |&depth| Place { length, depth, needles, sample })
                });
                groups.push(places.collect());
            }
        }
        groups
    }
}
