use std::{
    fs::{self, File, OpenOptions},
    path::Path,
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

const NAME: &str = "log.jsonl";

/// A line of `log.jsonl`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Line {
    /// Steps done.
    Steps {
        /// Steps in all.
        step: usize,
        /// The stage.
        stage: usize,
        /// Tokens in all.
        tokens: u64,
        /// Seconds in all.
        seconds: f64,
        /// Mean loss of the steps since the line before, nats by weight.
        loss: f64,
        /// Mean norm of the gradients.
        norm: f64,
        /// The learning rate of the last.
        rate: f64,
        /// Tokens per second since the line before.
        speed: f64,
    },
    /// A measurement on held-out words and text.
    Probe {
        /// Steps in all.
        step: usize,
        /// The stage.
        stage: usize,
        /// Tokens in all.
        tokens: u64,
        /// Tokens of the prompts.
        length: usize,
        /// Hidden numbers.
        needles: usize,
        /// Answers right in every digit.
        exact: f64,
        /// Right digits.
        digits: f64,
        /// Answers about variables right throughout, where prompts of that length hold the
        /// question.
        variables: Option<f64>,
        /// Nats per token of the held-out text.
        held_out: f64,
    },
}

impl Line {
    /// Steps in all.
    pub fn step(&self) -> usize {
        match self {
            Self::Steps { step, .. } | Self::Probe { step, .. } => *step,
        }
    }
}

/// Reads the lines of a log.
///
/// # Errors
/// If it cannot be read or a line is of another kind.
pub fn read_log(out: &Path) -> Result<Vec<Line>> {
    let path = out.join(NAME);
    let text =
        fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    parse(&text, &path)
}

fn parse(text: &str, path: &Path) -> Result<Vec<Line>> {
    let parse = |(index, text)| {
        serde_json::from_str(text)
            .with_context(|| format!("line {} of {} is none of a log", index + 1, path.display()))
    };
    text.lines().enumerate().map(parse).collect()
}

/// Opens the log of a run that goes on behind `step`. What an earlier run wrote after its last
/// checkpoint is trained again, and taken out.
pub(crate) fn open(out: &Path, step: usize) -> Result<File> {
    let path = out.join(NAME);
    let failed = || format!("{} cannot be written", path.display());
    if path.exists() {
        let text = fs::read_to_string(&path).with_context(failed)?;
        // A run that was killed may have left half a line.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let mut kept = String::new();
        for line in parse(&text[..whole], &path)? {
            if line.step() <= step {
                kept += &(serde_json::to_string(&line)? + "\n");
            }
        }
        if kept != text {
            let fresh = out.join("log.jsonl.new");
            fs::write(&fresh, kept).with_context(failed)?;
            fs::rename(&fresh, &path).with_context(failed)?;
        }
    }
    OpenOptions::new().create(true).append(true).open(&path).with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(step: usize) -> Line {
        Line::Steps {
            step,
            stage: 0,
            tokens: 1,
            seconds: 0.1,
            loss: 0.3,
            norm: 1.0,
            rate: 1e-3,
            speed: 7.0,
        }
    }

    #[test]
    fn what_is_trained_again_leaves_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let write = |steps: &[Line], rest: &str| {
            let lines = steps.iter().map(|line| serde_json::to_string(line).unwrap() + "\n");
            fs::write(dir.path().join(NAME), lines.collect::<String>() + rest).unwrap();
        };
        write(&[steps(20), steps(40), steps(60)], "{\"kind\":\"st");
        assert!(read_log(dir.path()).is_err());
        open(dir.path(), 40).unwrap();
        assert_eq!(read_log(dir.path()).unwrap(), [steps(20), steps(40)]);
        open(dir.path(), 0).unwrap();
        assert_eq!(read_log(dir.path()).unwrap(), []);
        write(&[steps(20)], "nonsense\n");
        let error = format!("{:#}", open(dir.path(), 40).unwrap_err());
        assert!(error.contains("line 2"), "{error}");
    }
}
