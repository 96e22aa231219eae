use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::data::Mixture;

/// The course of a training: the stages of the curriculum, and the rule by which weights are
/// updated.
///
/// Written as TOML, with every field left out at its default.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Plan {
    /// The rate of all stages but the last, after warming up.
    pub learning_rate: f64,
    /// The rate the last stage begins with; it falls in a line to zero.
    pub last_learning_rate: f64,
    /// Steps in which the rate rises from zero.
    pub warmup_steps: usize,
    /// Decay of the matrices (AdamW, Loshchilov and Hutter, 2019).
    pub weight_decay: f64,
    /// Decays of the moments.
    pub betas: [f64; 2],
    /// The norm of all gradients is at most this.
    pub clip: f64,
    /// Tokens that go through the model at once.
    pub micro_tokens: usize,
    /// Steps between two measurements on held-out words and text.
    pub probe_steps: usize,
    /// Samples of a measurement.
    pub probe_samples: usize,
    /// The curriculum.
    #[serde(rename = "stage")]
    pub stages: Vec<Stage>,
}

/// A part of the curriculum.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Stage {
    /// Tokens of a sequence; several take turns from micro-batch to micro-batch.
    pub lengths: Vec<usize>,
    /// Tokens of a step.
    pub step_tokens: usize,
    /// Its share of the training. What a stage that ends early leaves goes to those behind it.
    pub share: f64,
    /// It ends when this share of the measured questions is answered, if it is given.
    #[serde(default)]
    pub enough: Option<f64>,
    /// And when this share of those about variables is, if that is given too.
    #[serde(default)]
    pub enough_variables: Option<f64>,
    /// Numbers hidden in a measured question.
    #[serde(default = "four")]
    pub probe_needles: usize,
    /// Frequency of each task.
    #[serde(default)]
    pub mixture: Mixture,
}

fn four() -> usize {
    4
}

impl Default for Plan {
    fn default() -> Self {
        let early = Mixture {
            prose: 0.08,
            needle: 0.0,
            needles: 0.26,
            lines: 0.32,
            copy: 0.23,
            variables: 0.04,
            chains: 0.07,
        };
        let later = Mixture::default();
        let stage = |lengths: &[usize], share, enough, enough_variables, mixture| Stage {
            lengths: lengths.into(),
            step_tokens: 131_072,
            share,
            enough,
            enough_variables,
            probe_needles: 4,
            mixture,
        };
        Self {
            learning_rate: 3e-3,
            last_learning_rate: 2.5e-3,
            warmup_steps: 150,
            weight_decay: 0.1,
            betas: [0.9, 0.95],
            clip: 1.0,
            micro_tokens: 65_536,
            probe_steps: 100,
            probe_samples: 64,
            stages: vec![
                stage(&[256], 0.22, Some(0.90), None, early),
                stage(&[512], 0.14, Some(0.97), Some(0.80), later),
                stage(&[1024, 512], 0.14, Some(0.98), Some(0.90), later),
                stage(&[2048, 1024], 0.15, None, None, later),
                stage(&[4096, 1024, 4096, 2048, 4096, 512], 0.35, None, None, later),
            ],
        }
    }
}

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    /// If the file cannot be read, has unknown fields, or its numbers cannot be.
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("{} cannot be read", path.display()))?;
        let plan: Self =
            toml::from_str(&text).with_context(|| format!("{} is no plan", path.display()))?;
        plan.check()?;
        Ok(plan)
    }

    /// Refuses plans that cannot be trained.
    ///
    /// # Errors
    /// With the number that cannot be.
    pub fn check(&self) -> Result<()> {
        ensure!(!self.stages.is_empty(), "a plan needs a stage");
        ensure!(self.probe_steps > 0, "probe-steps is 0");
        for (index, stage) in self.stages.iter().enumerate() {
            ensure!(!stage.lengths.is_empty(), "stage {index} has no length");
            ensure!(stage.share > 0.0, "the share of stage {index} is {}", stage.share);
            for length in &stage.lengths {
                ensure!(
                    *length >= 64 && self.micro_tokens.is_multiple_of(*length),
                    "a length of {length} in stage {index}: at least 64, and a divisor of micro-tokens = {}",
                    self.micro_tokens
                );
            }
            ensure!(
                stage.step_tokens > 0 && stage.step_tokens.is_multiple_of(self.micro_tokens),
                "step-tokens = {} in stage {index} is not a multiple of micro-tokens = {}",
                stage.step_tokens,
                self.micro_tokens
            );
        }
        Ok(())
    }

    /// Fields in which another plan differs, as `field: here, there`.
    ///
    /// # Errors
    /// If a number is not finite.
    pub fn differences(&self, other: &Self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        let (here, there) = (serde_json::to_value(self)?, serde_json::to_value(other)?);
        compare("", &here, &there, &mut found);
        Ok(found)
    }

    /// The longest sequence.
    pub fn longest(&self) -> usize {
        self.stages.iter().flat_map(|stage| &stage.lengths).copied().max().unwrap_or(0)
    }

    /// The rate at a step of the whole training, with the progress of its stage from 0 to 1.
    pub fn rate(&self, stage: usize, progress: f64, step: usize) -> f64 {
        let last = stage + 1 == self.stages.len();
        let rate = if last {
            self.last_learning_rate * (1.0 - progress).max(0.0)
        } else {
            self.learning_rate
        };
        rate * ((step + 1) as f64 / self.warmup_steps.max(1) as f64).min(1.0)
    }
}

fn compare(name: &str, here: &Value, there: &Value, found: &mut Vec<String>) {
    match (here, there) {
        (Value::Object(here), Value::Object(there)) => {
            for (field, here) in here {
                let name = if name.is_empty() { field.clone() } else { format!("{name}.{field}") };
                compare(&name, here, there.get(field).unwrap_or(&Value::Null), found);
            }
        }
        (Value::Array(here), Value::Array(there))
            if name == "stage" && here.len() == there.len() =>
        {
            for (index, (here, there)) in here.iter().zip(there).enumerate() {
                compare(&format!("stage {index}"), here, there, found);
            }
        }
        (Value::Array(here), Value::Array(there)) if name == "stage" => {
            found.push(format!("stages: {}, {}", here.len(), there.len()));
        }
        _ if here != there => found.push(format!("{name}: {here}, {there}")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_holds_and_survives_toml() {
        let plan = Plan::default();
        plan.check().unwrap();
        let text = toml::to_string(&plan).unwrap();
        assert_eq!(toml::from_str::<Plan>(&text).unwrap(), plan);
        assert_eq!(plan.longest(), 4096);
    }

    #[test]
    fn the_rate_warms_up_stays_and_falls_to_zero() {
        let plan = Plan { warmup_steps: 100, ..Plan::default() };
        let last = plan.stages.len() - 1;
        assert_eq!(plan.rate(0, 0.0, 49), 3e-3 * 0.5);
        assert_eq!(plan.rate(1, 0.9, 1000), 3e-3);
        assert_eq!(plan.rate(last, 0.5, 1000), 1.25e-3);
        assert_eq!(plan.rate(last, 1.0, 1000), 0.0);
    }

    #[test]
    fn differences_are_named_with_both_sides() {
        let plan = Plan::default();
        assert!(plan.differences(&plan).unwrap().is_empty());
        let mut other = Plan { clip: 0.5, ..plan.clone() };
        other.stages[1].mixture.copy = 0.25;
        other.stages[4].lengths = vec![4096];
        let found = plan.differences(&other).unwrap();
        assert_eq!(
            found,
            [
                "clip: 1.0, 0.5",
                "stage 1.mixture.copy: 0.03, 0.25",
                "stage 4.lengths: [4096,1024,4096,2048,4096,512], [4096]"
            ]
        );
        other.stages.pop();
        assert_eq!(plan.differences(&other).unwrap(), ["clip: 1.0, 0.5", "stages: 5, 4"]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_numbers() {
        let refuse = |change: fn(&mut Plan)| {
            let mut plan = Plan::default();
            change(&mut plan);
            plan.check().unwrap_err().to_string()
        };
        assert!(refuse(|plan| plan.micro_tokens = 1000).contains("256"));
        assert!(refuse(|plan| plan.stages[1].step_tokens = 70_000).contains("70000"));
        assert!(refuse(|plan| plan.stages.clear()).contains("stage"));
        assert!(toml::from_str::<Plan>("learning-rat = 1").is_err());
    }
}
