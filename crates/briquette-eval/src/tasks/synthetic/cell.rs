use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;

use crate::{
    Error, Result,
    tasks::{Question, sample::MOST_SAMPLES, seed},
};

/// The parameters all families share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid<'a> {
    pub(super) task: &'static str,
    pub(super) lengths: &'a [usize],
    /// `None` for a task where nothing has a depth.
    pub(super) depths: Option<&'a [u32]>,
    pub(super) samples: usize,
    pub(super) ask: &'a [Question],
}

impl Grid<'_> {
    /// One cell a sample.
    pub(super) fn cells(&self) -> Result<Vec<Cell>> {
        let Self { task, lengths, depths, samples, ask } = *self;
        once(task, "lengths", lengths)?;
        once(task, "depths", depths.unwrap_or(&[0]))?;
        once(task, "ask", ask)?;
        if let Some(depth) = depths.unwrap_or_default().iter().find(|depth| **depth > 100) {
            return refuse(task, "depths", format!("{depth} % is above 100"));
        }
        at_least(task, "samples", samples, 1)?;
        at_most(task, "samples", samples, MOST_SAMPLES)?;
        let depths: Vec<Option<u32>> = match depths {
            Some(depths) => depths.iter().copied().map(Some).collect(),
            None => vec![None],
        };
        let mut cells = Vec::new();
        for &length in lengths {
            for sample in 0..samples {
                cells.extend(depths.iter().map(|&depth| Cell { task, length, depth, sample }));
            }
        }
        Ok(cells)
    }
}

/// The place of a sample in the grid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) task: &'static str,
    pub(super) length: usize,
    pub(super) depth: Option<u32>,
    pub(super) sample: usize,
}

impl Cell {
    pub(super) fn id(&self) -> String {
        let Self { length, sample, .. } = self;
        match self.depth {
            Some(depth) => format!("length={length},depth={depth},sample={sample}"),
            None => format!("length={length},sample={sample}"),
        }
    }

    /// Says that parts of `fixed` tokens leave no room in the length.
    pub(super) fn too_short(&self, fixed: usize) -> Error {
        Error::PromptTooShort { task: self.task, length: self.length, fixed }
    }

    /// 0 if nothing has a depth.
    pub(super) fn depth(&self) -> u32 {
        self.depth.unwrap_or(0)
    }

    pub(super) fn axes(&self, further: &[(&str, usize)]) -> BTreeMap<String, u64> {
        let mut axes = BTreeMap::from([("length".to_owned(), self.length as u64)]);
        axes.extend(self.depth.map(|depth| ("depth".to_owned(), u64::from(depth))));
        axes.extend(further.iter().map(|&(name, value)| (name.to_owned(), value as u64)));
        axes
    }

    /// Random numbers of this sample, the same at every depth. Parts do not touch each other.
    pub(super) fn stream(&self, seed: u64, part: u64) -> ChaCha8Rng {
        let task = seed::hash(self.task.bytes());
        seed::rng(&[seed, task, self.length as u64, self.sample as u64, part])
    }
}

pub(super) fn refuse<T>(
    task: &'static str,
    parameter: &'static str,
    reason: impl Into<String>,
) -> Result<T> {
    Err(Error::TaskParameter { task, parameter, reason: reason.into() })
}

pub(super) fn at_least(
    task: &'static str,
    parameter: &'static str,
    value: usize,
    least: usize,
) -> Result<()> {
    if value < least {
        return refuse(task, parameter, format!("{value} given, at least {least} is needed"));
    }
    Ok(())
}

pub(super) fn at_most(
    task: &'static str,
    parameter: &'static str,
    value: usize,
    most: usize,
) -> Result<()> {
    if value > most {
        return refuse(task, parameter, format!("{value} given, at most {most} can be made"));
    }
    Ok(())
}

/// Refuses a list without a value, or with one twice.
fn once<T: PartialEq + std::fmt::Debug>(
    task: &'static str,
    parameter: &'static str,
    values: &[T],
) -> Result<()> {
    if values.is_empty() {
        return refuse(task, parameter, "no value given");
    }
    match (1..values.len()).find(|&i| values[..i].contains(&values[i])) {
        Some(i) => refuse(task, parameter, format!("{:?} is given twice", values[i])),
        None => Ok(()),
    }
}
