//! Every method at every budget, on needles and on text.
//!
//! Each answer and each window of text is one line of a [`Journal`]: a run that was killed
//! continues where it was, and a run with further policies or budgets takes over what is there.

use std::{collections::BTreeMap, path::Path};

use briquette::Policy;
use briquette_models::{Model, Tokenizer};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result, fingerprint,
    grid::{Answer, Axes, Entry, Question, Runner, Summary},
    jobs,
    journal::{Accept, Journal},
    perplexity::{self, Loss},
    settings,
    tasks::{
        haystack::Haystack,
        needle::{NeedlePrompt, NeedleTask, Place},
        text::{Text, Window},
    },
};

/// Prompts and windows that every policy is measured on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Tokens of a needle prompt with its answer, and of a prompt of text.
    pub length: usize,
    /// Depths of the needle, in percent.
    pub depths: Vec<u32>,
    /// Needle prompts at each depth.
    pub samples: usize,
    /// Tokens predicted behind each prompt of text.
    pub tokens: usize,
    /// Windows of the text.
    pub windows: usize,
    /// Seed of the needle prompts.
    pub seed: u64,
}

/// A policy with a budget that is to be measured, or the reason why it cannot be.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Label of the policy in tables.
    pub label: String,
    /// Its budget as text, `-` for a policy without one.
    pub budget: String,
    /// The policy.
    pub policy: std::result::Result<Policy, String>,
}

/// A table to be made.
#[derive(Debug)]
pub struct Comparison<'a> {
    /// The model.
    pub model: &'a Model,
    /// Its tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The text that needles are hidden in.
    pub haystack: &'a Haystack,
    /// The text to continue.
    pub text: &'a Text,
    /// The sizes.
    pub plan: Plan,
    /// The policies. [`Comparison::run`] notes here why one has no result.
    pub candidates: Vec<Candidate>,
    /// The name of the model: results of another one are not continued.
    pub name: String,
    /// Its fingerprint, by [`of_model`](crate::fingerprint::of_model).
    pub weights: String,
    /// Which earlier results are accepted.
    pub accept: Accept,
    /// Prompts that run at a time.
    pub threads: usize,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The label of the policy.
    pub policy: String,
    /// Its budget as text.
    pub budget: String,
    /// The result, or why there is none.
    #[serde(flatten)]
    pub found: Found,
}

/// The result of one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Found {
    /// The policy cannot hold at this budget, or lacks something.
    Unavailable(String),
    /// Its answers and losses.
    Measured {
        /// On needles.
        needles: Summary,
        /// On text: nats a token, one number a window.
        nats: Vec<f64>,
        /// On text: bytes of cache held behind a window, the mean over windows, with the room for
        /// tokens to come.
        text_bytes_held: f64,
    },
}

/// An answer or a window, without the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    Needle { sample: usize, depth: u32, question: Question },
    Text { window: usize },
}

/// One line of the journal. `policy` is the [fingerprint](fingerprint::of_policy) of the policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "kebab-case")]
enum Line {
    Needle { policy: String, answer: Answer },
    Text { policy: String, window: usize, loss: Loss },
}

/// Lines by policy and task.
type Lines = BTreeMap<(String, Task), Line>;

impl Comparison<'_> {
    /// Measures what the journal at `path` does not hold yet. `on_steps` hears of the steps done
    /// and of all there are, and of the policy at work: first of those found in the journal.
    ///
    /// # Errors
    /// [`Error::Grid`] for a plan without prompts, what [`NeedleTask::prompt`],
    /// [`perplexity::Plan::windows`] and [`Journal::open`] refuse, and failures of the model while
    /// it runs.
    pub fn run(
        &mut self,
        path: &Path,
        mut on_steps: impl FnMut(usize, usize, &str),
    ) -> Result<Vec<Row>> {
        let (prompts, windows) = (self.prompts()?, self.windows()?);
        for candidate in &mut self.candidates {
            if let Ok(policy) = &candidate.policy
                && let Err(error) = self.model.cache(policy.clone())
            {
                candidate.policy = Err(error.to_string());
            }
        }
        let entries: Vec<Option<(Entry, String)>> = self
            .candidates
            .iter()
            .map(|Candidate { label, policy, .. }| {
                let policy = policy.as_ref().ok()?.clone();
                let fingerprint = fingerprint::of_policy(&policy);
                Some((Entry { label: label.clone(), policy }, fingerprint))
            })
            .collect();

        let (mut journal, found) = Journal::open::<Line>(path, &self.settings(), self.accept)?;
        let mut lines: Lines = found.into_iter().map(|line| (line.key(), line)).collect();
        let mut todo = Vec::new();
        let mut steps = 0;
        for (entry, fingerprint) in entries.iter().flatten() {
            for task in tasks(entry, &prompts, &windows) {
                steps += 1;
                if !lines.contains_key(&(fingerprint.clone(), task)) {
                    todo.push((entry, fingerprint, task));
                }
            }
        }
        let mut done = steps - todo.len();
        on_steps(done, steps, "");
        let work = |(entry, fingerprint, task): &(&Entry, &String, Task)| {
            self.measure(entry, fingerprint, *task, &prompts, &windows)
        };
        jobs::run(&todo, self.threads, work, |(entry, ..), found| {
            for line in found {
                journal.push(&line)?;
                lines.insert(line.key(), line);
            }
            done += 1;
            on_steps(done, steps, &format!("{} {}", entry.label, entry.budget()));
            Ok(())
        })?;
        journal.finish()?;

        let rows = self.candidates.iter().zip(&entries).map(|(candidate, entry)| Row {
            policy: candidate.label.clone(),
            budget: candidate.budget.clone(),
            found: match (&candidate.policy, entry) {
                (Ok(_), Some((entry, fingerprint))) => {
                    found_of(entry, fingerprint, &tasks(entry, &prompts, &windows), &lines)
                }
                (policy, _) => {
                    Found::Unavailable(policy.as_ref().err().cloned().unwrap_or_default())
                }
            },
        });
        Ok(rows.collect())
    }

    fn prompts(&self) -> Result<Vec<NeedlePrompt>> {
        let Plan { length, depths, samples, seed, .. } = &self.plan;
        let axes = Axes {
            lengths: vec![*length],
            depths: depths.clone(),
            needles: vec![1],
            samples: *samples,
            seed: *seed,
            entries: vec![Entry::full()],
        };
        axes.check()?;
        let context = self.model.config().max_position_embeddings;
        if *length > context {
            return Err(Error::ContextTooShort { length: *length, context });
        }
        let task = NeedleTask::new(self.tokenizer, self.haystack, *seed)?;
        axes.groups().into_iter().flatten().map(|place| task.prompt(place)).collect()
    }

    fn windows(&self) -> Result<Vec<Window>> {
        let Plan { length, tokens, windows, .. } = self.plan;
        let plan = perplexity::Plan { prompt: length, tokens, windows, stride: None };
        plan.windows(self.text, self.model)
    }

    fn settings(&self) -> serde_json::Value {
        let named = (self.model, self.name.as_str(), self.weights.as_str());
        let texts = std::slice::from_ref(self.text);
        settings::of("compare", named, Some(self.haystack), texts, &self.plan)
    }

    fn measure(
        &self,
        entry: &Entry,
        fingerprint: &str,
        task: Task,
        prompts: &[NeedlePrompt],
        windows: &[Window],
    ) -> Result<Vec<Line>> {
        let policy = fingerprint.to_owned();
        match task {
            Task::Text { window } => {
                let tokens = &windows[window].tokens;
                let loss = perplexity::loss(self.model, &entry.policy, tokens, self.plan.length)?;
                Ok(vec![Line::Text { policy, window, loss }])
            }
            Task::Needle { sample, depth, question } => {
                let at = |prompt: &&NeedlePrompt| {
                    let Place { sample: s, depth: d, .. } = prompt.place;
                    (s, d) == (sample, depth)
                };
                let prompt: Vec<NeedlePrompt> = prompts.iter().filter(at).cloned().collect();
                let runner = Runner { model: self.model, tokenizer: self.tokenizer };
                let answers = match question {
                    Question::Before => runner.before(entry, &prompt)?,
                    Question::After => runner.after(entry, &prompt)?,
                };
                let line = |answer| Line::Needle { policy: policy.clone(), answer };
                Ok(answers.into_iter().map(line).collect())
            }
        }
    }
}

impl Line {
    fn key(&self) -> (String, Task) {
        match self {
            Self::Needle { policy, answer: Answer { sample, depth, question, .. } } => {
                let task = Task::Needle { sample: *sample, depth: *depth, question: *question };
                (policy.clone(), task)
            }
            Self::Text { policy, window, .. } => (policy.clone(), Task::Text { window: *window }),
        }
    }
}

/// The answers and windows that a policy is measured on.
fn tasks(entry: &Entry, prompts: &[NeedlePrompt], windows: &[Window]) -> Vec<Task> {
    let questions: &[Question] =
        if entry.keeps_all() { &[Question::After] } else { &[Question::Before, Question::After] };
    let needles = prompts.iter().flat_map(|prompt| {
        let Place { sample, depth, .. } = prompt.place;
        questions.iter().map(move |&question| Task::Needle { sample, depth, question })
    });
    needles.chain((0..windows.len()).map(|window| Task::Text { window })).collect()
}

fn found_of(entry: &Entry, fingerprint: &str, tasks: &[Task], lines: &Lines) -> Found {
    let (mut answers, mut losses) = (Vec::new(), Vec::new());
    for task in tasks {
        match lines.get(&(fingerprint.to_owned(), *task)) {
            Some(Line::Needle { answer, .. }) => {
                if entry.keeps_all() {
                    answers.push(answer.asked_before());
                }
                answers.push(answer.clone());
            }
            Some(Line::Text { loss, .. }) => losses.push(loss),
            None => {}
        }
    }
    let bytes: f64 = losses.iter().map(|loss| loss.bytes_held as f64).sum();
    Found::Measured {
        needles: Summary::of(&answers.iter().collect::<Vec<_>>()),
        nats: losses.iter().map(|loss| loss.mean()).collect(),
        text_bytes_held: bytes / losses.len().max(1) as f64,
    }
}
