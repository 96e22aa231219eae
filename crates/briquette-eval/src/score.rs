//! Predictions made elsewhere, scored as a run scores its answers.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::{Error, Result, files::as_text, metrics::Metric, stats::Estimate, tasks::files};

/// Fields of the predictions to score, and the metrics to score them by.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Scoring {
    /// The field with what was said.
    pub prediction: String,
    /// The field with the right answers: a text, or a list of them.
    pub answers: String,
    /// The field with the labels to choose from, or with the false answers, for metrics that read
    /// them.
    pub classes: Option<String>,
    /// The metrics.
    pub metrics: Vec<Metric>,
    /// Whether records that cannot be used are left out, and reported, instead of refused.
    pub skip_damaged: bool,
}

/// Scores of a file of predictions.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Scores {
    /// The file.
    #[serde(serialize_with = "as_text")]
    pub file: PathBuf,
    /// The mean over records of each metric, with its 95 % interval.
    pub metrics: BTreeMap<&'static str, Estimate>,
    /// Records left out, with the reasons.
    pub left_out: Vec<String>,
    /// The scores of each record.
    pub records: Vec<Scored>,
}

/// Scores of one prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Scored {
    /// The line of its record.
    pub line: usize,
    /// By metric.
    pub scores: BTreeMap<&'static str, f64>,
}

impl Scoring {
    /// Scores the predictions of a file: JSON lines, a JSON array, or a table (`.csv`) with a
    /// header.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::DataLine`] for a record that lacks a field, unless such are left
    /// out, and [`Error::TooFewSamples`] for a file without a record.
    pub fn score(&self, path: &Path) -> Result<Scores> {
        let (mut records, mut left_out) = (Vec::new(), Vec::new());
        files::records(path, |line, record| {
            let scored = record.and_then(|fields| {
                let said = fields.text(&self.prediction)?;
                let answers = fields.texts(&self.answers)?;
                if answers.is_empty() {
                    return Err(format!("`{}` holds no answer", self.answers));
                }
                let classes = match &self.classes {
                    Some(name) if fields.has(name) => fields.texts(name)?,
                    _ => Vec::new(),
                };
                let score = |metric: &Metric| {
                    let score = metric.score(&said, &answers, &classes);
                    match score.is_finite() {
                        true => Ok((metric.name(), score)),
                        false => Err(format!("{} gives no number", metric.name())),
                    }
                };
                let scores =
                    self.metrics.iter().map(score).collect::<std::result::Result<_, _>>()?;
                Ok(Scored { line, scores })
            });
            match scored {
                Ok(scored) => records.push(scored),
                Err(message) => {
                    let damaged = Error::DataLine { path: path.into(), line, message };
                    if !self.skip_damaged {
                        return Err(damaged);
                    }
                    left_out.push(damaged.to_string());
                }
            }
            Ok(())
        })?;
        if records.is_empty() {
            return Err(Error::TooFewSamples { path: path.into(), asked: 1, found: 0 });
        }
        let mean = |metric: &Metric| {
            let name = metric.name();
            let scores: Vec<f64> =
                records.iter().filter_map(|record| record.scores.get(name).copied()).collect();
            (name, Estimate::of_scores_from(*metric.range().start(), &scores))
        };
        let metrics = self.metrics.iter().map(mean).collect();
        Ok(Scores { file: path.into(), metrics, left_out, records })
    }
}
