//! Budgets, rounds and the ranking.

use std::{collections::BTreeMap, path::Path};

use briquette::{Budget, Policy};
use briquette_models::Model;
use serde::{Deserialize, Serialize};

use super::{Round, material::Material, prompt::Prompt, rounds};
use crate::{
    Error, Result,
    fidelity::{self, Largest, Measured, Reference},
    fingerprint, jobs,
    journal::{Accept, Journal},
    policy::AMPLE,
    record::CacheBytes,
    settings,
    stats::Mean,
};

/// So many times the target may be kept. Budgets are whole tokens, and where entries are merged a
/// text decides what is kept.
const TOLERANCE: f64 = 1.05;

/// Shares that differ by no more than this part of them are the same.
const SAME: f64 = 0.005;

/// The unit of budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Tokens a layer: the memory stays as it is however long a prompt grows.
    Tokens,
    /// Thousandths of the tokens seen: the memory grows with the prompt.
    Share,
}

/// The target of a search, and its measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The share of the full cache's bytes that may be kept at the end of a prompt, above 0 and up
    /// to 1. Spare room does not count.
    pub target: f64,
    /// The unit of budgets.
    pub unit: Unit,
    /// Tokens of a prompt, the most where questions are asked.
    pub prompt: usize,
    /// Tokens fed behind it, the most where questions are asked.
    pub tokens: usize,
    /// Windows of the text, or questions, that the last round is measured on.
    pub windows: usize,
    /// Seed of the order in which windows are used.
    pub seed: u64,
}

/// A policy that may be chosen. Its budget, if it takes one, is searched for.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its name in tables.
    pub label: String,
    /// The policy, or why there is none.
    pub policy: std::result::Result<Policy, String>,
}

/// A search for the best policy.
#[derive(Debug)]
pub struct Tuning<'a> {
    /// The model.
    pub model: &'a Model,
    /// The text to continue, or the questions to ask.
    pub material: Material<'a>,
    /// The target and the sizes.
    pub plan: Plan,
    /// The policies to try.
    pub candidates: Vec<Candidate>,
    /// The name of the model: results of another one are not continued.
    pub name: String,
    /// Its fingerprint, by [`of_model`](crate::fingerprint::of_model).
    pub weights: String,
    /// The stored results that are accepted.
    pub accept: Accept,
    /// Policies measured at a time.
    pub threads: usize,
}

/// The result of a search.
#[derive(Debug)]
pub struct Tuned {
    /// Those that hold the target, the best first: by the round they came to, then by KL.
    pub ranked: Vec<Ranked>,
    /// Those that do not.
    pub refused: Vec<Refused>,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// The results of every step. To be removed when the policy has been written.
    pub journal: Journal,
}

/// A candidate that holds the target, and how it did.
#[derive(Clone, Debug, Serialize)]
pub struct Ranked {
    /// Its name in tables.
    pub label: String,
    /// Its budget as text, `-` for a policy without one.
    pub budget: String,
    /// The policy with this budget.
    #[serde(skip)]
    pub policy: Policy,
    /// The last round it took part in, from 1.
    pub round: usize,
    /// KL(full ‖ compressed) in nats per token, the mean over its windows.
    pub kl: Mean,
    /// How much higher its KL is than that of the best in the same windows.
    pub above_best: Mean,
    /// The share of tokens after which the most likely token is that of the full cache, the mean.
    pub agreement: f64,
    /// The output error, the mean over layers and windows.
    pub output_error: f64,
    /// The overlap with the oracle, the mean; absent if nothing is dropped.
    pub overlap: Option<f64>,
    /// Bytes kept, without spare room, over those of the full cache at the end of a prompt, the
    /// highest of its windows.
    pub held: f64,
}

/// A candidate that cannot hold the target, or lacks something.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refused {
    /// Its name in tables.
    pub label: String,
    /// Why it is refused.
    pub reason: String,
    /// Bytes it keeps at the least, without spare room, over those of the full cache; `None` if it
    /// cannot be measured.
    pub held: Option<f64>,
}

/// One line of the journal; `policy` is a fingerprint.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
enum Line {
    /// The largest budget of a candidate in one window, `None` for a policy that has none.
    Budget { policy: String, window: usize, size: Option<usize>, held: CacheBytes },
    /// No budget holds the target.
    Refused {
        policy: String,
        reason: String,
        #[serde(default)]
        held: Option<CacheBytes>,
    },
    /// A policy in one window.
    Score {
        policy: String,
        window: usize,
        #[serde(flatten)]
        score: Score,
    },
}

/// In f32, which JSON gives back exactly.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Score {
    kl: f32,
    agreement: f32,
    output_error: f32,
    overlap: Option<f32>,
    held: CacheBytes,
}

/// Finished measurements, those of the journal among them.
#[derive(Debug, Default)]
struct Done {
    budgets: BTreeMap<(String, usize), (Option<usize>, CacheBytes)>,
    refused: BTreeMap<String, (String, Option<CacheBytes>)>,
    scores: BTreeMap<(String, usize), Score>,
}

/// The settings of a search, as the first line of its journal.
#[derive(Debug, Serialize)]
struct Settings<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    /// The bytes that count.
    bytes: &'static str,
    /// The fingerprint of the questions.
    #[serde(skip_serializing_if = "Option::is_none")]
    questions: Option<String>,
}

/// A candidate with the budget it is measured at.
#[derive(Clone, Debug)]
struct Fitted {
    label: String,
    policy: Policy,
    /// Of the policy with this budget.
    key: String,
}

impl Tuning<'_> {
    /// Searches, and keeps the result of every step in a [`Journal`] at `partial`: a run that was
    /// killed goes on where it was. `on_step` hears of steps done and of all that are known of, and
    /// of what is at work.
    ///
    /// The same plan gives the same ranking, number for number.
    ///
    /// # Errors
    /// [`Error::Setting`] for a plan without windows, with more than there are questions, or a
    /// target outside 0..=1, [`Error::ContextTooShort`], [`Error::TextTooShort`], what
    /// [`Journal::open`] refuses, and failures of the model.
    pub fn run(
        &self,
        partial: &Path,
        mut on_step: impl FnMut(usize, usize, &str),
    ) -> Result<Tuned> {
        let windows = self.windows()?;
        let (mut journal, lines) = Journal::open::<Line>(partial, &self.settings(), self.accept)?;
        let mut done = Done::default();
        lines.into_iter().for_each(|line| done.add(line));

        let (fitted, mut refused) = self.fit(&windows, &mut journal, &mut done, &mut on_step)?;
        let rounds = rounds(fitted.len(), windows.len());
        let before = std::iter::once(0).chain(rounds.iter().map(|round| round.windows));
        let total: usize = rounds
            .iter()
            .zip(before)
            .map(|(of, before)| of.candidates * (of.windows - before))
            .sum();
        let mut alive: Vec<&Fitted> = fitted.iter().collect();
        let mut ranked: Vec<(usize, &Fitted, usize)> = Vec::new();
        let (mut from, mut steps) = (0, 0);
        for (number, round) in (1..).zip(&rounds) {
            for (index, window) in windows.iter().enumerate().take(round.windows).skip(from) {
                let todo: Vec<&Fitted> = alive
                    .iter()
                    .copied()
                    .filter(|one| !done.scores.contains_key(&(one.key.clone(), index)))
                    .collect();
                steps += alive.len() - todo.len();
                on_step(steps, total, "");
                if todo.is_empty() {
                    continue;
                }
                let reference = Reference::new(self.model, &window.tokens, window.length)?
                    .comparing(window.compared.clone());
                let work = |one: &&Fitted| reference.measure(one.policy.clone());
                jobs::run(&todo, self.threads, work, |one, measured| {
                    let (policy, score) = (one.key.clone(), Score::of(&measured));
                    let line = Line::Score { policy, window: index, score };
                    journal.push(&line)?;
                    done.add(line);
                    steps += 1;
                    on_step(steps, total, &one.label);
                    Ok(())
                })?;
            }
            from = round.windows;
            let exceeds = |one: &&Fitted| !self.fits(done.most_held(&one.key, from));
            let (over, mut kept): (Vec<&Fitted>, Vec<&Fitted>) =
                alive.into_iter().partition(exceeds);
            refused.extend(over.into_iter().map(|one| {
                let held = done.most_held(&one.key, from);
                let reason = format!(
                    "the budget that held in the first windows holds {:.1} % in a later one",
                    100.0 * held
                );
                Refused { label: one.label.clone(), reason, held: Some(held) }
            }));
            let kl = |one: &Fitted| done.mean(&one.key, from, |score| score.kl).mean;
            kept.sort_by(|a, b| kl(a).total_cmp(&kl(b)).then_with(|| a.label.cmp(&b.label)));
            let stay = rounds.get(number).map_or(0, |next| next.candidates).min(kept.len());
            ranked.extend(kept.split_off(stay).into_iter().map(|one| (number, one, from)));
            alive = kept;
        }
        // Later rounds first; within one they stand in order.
        ranked.sort_by_key(|(round, ..)| std::cmp::Reverse(*round));
        let best = ranked.first().map(|(_, best, _)| best.key.clone()).unwrap_or_default();
        let ranked = ranked
            .into_iter()
            .map(|(round, one, windows)| done.ranked(one, round, windows, &best))
            .collect();
        Ok(Tuned { ranked, refused, rounds, journal })
    }

    /// Whether so much of the full cache's bytes may be kept.
    fn fits(&self, share: f64) -> bool {
        share <= TOLERANCE * self.plan.target
    }

    /// The prompts, in the order they are used.
    fn windows(&self) -> Result<Vec<Prompt>> {
        let Plan { target, prompt, tokens, windows, seed, .. } = self.plan;
        if !(target > 0.0 && target <= 1.0) {
            let reason = format!("{target} is not a share above 0 and up to 1");
            return Err(Error::Setting { name: "target-ratio", reason });
        }
        if self.candidates.is_empty() {
            return Err(Error::Setting { name: "policies", reason: "no policy given".into() });
        }
        let plan = fidelity::Plan { prompt, tokens, windows, stride: None };
        self.material.prompts(&plan, seed, self.model)
    }

    fn settings(&self) -> serde_json::Value {
        let named = (self.model, self.name.as_str(), self.weights.as_str());
        let (texts, questions) = match self.material {
            Material::Text(text) => (std::slice::from_ref(text), None),
            Material::Questions(questions) => (&[][..], Some(questions.fingerprint())),
        };
        let plan = Settings { plan: &self.plan, bytes: "without spare room", questions };
        settings::of("tune", named, None, texts, &plan)
    }

    /// The candidates with the largest budgets that hold the target in every window, and those that
    /// have none.
    ///
    /// The bytes kept depend on the text only where entries are merged, and on the length of a
    /// context: a candidate that keeps the same in two windows is not looked at in further ones.
    fn fit(
        &self,
        windows: &[Prompt],
        journal: &mut Journal,
        done: &mut Done,
        on_step: &mut impl FnMut(usize, usize, &str),
    ) -> Result<(Vec<Fitted>, Vec<Refused>)> {
        let mut refused = Vec::new();
        let mut open: Vec<(&Candidate, Policy, String)> = Vec::new();
        for candidate in &self.candidates {
            let policy = candidate.policy.clone().and_then(|policy| {
                let policy = policy.with_default_budget(AMPLE);
                let opened = self.model.cache(policy.clone());
                opened.map(|_| policy).map_err(|error| error.to_string())
            });
            match policy {
                Ok(policy) => {
                    let key = fingerprint::of_policy(&policy);
                    open.push((candidate, policy, key));
                }
                Err(reason) => {
                    let label = candidate.label.clone();
                    refused.push(Refused { label, reason, held: None });
                }
            }
        }
        for (index, window) in windows.iter().enumerate() {
            let todo: Vec<(&Policy, &String, Option<usize>)> = open
                .iter()
                .filter(|(_, _, key)| !done.is_settled(key, index))
                .map(|(_, policy, key)| (policy, key, done.size(key)))
                .collect();
            if todo.is_empty() {
                continue;
            }
            // One token behind the prompt, since there must be one.
            let read = &window.tokens[..window.length + 1];
            let reference = Reference::new(self.model, read, window.length)?;
            let (mut steps, total) = (0, todo.len());
            let work = |&(policy, key, hint): &(&Policy, &String, Option<usize>)| {
                self.largest(&reference, policy, key, index, hint)
            };
            jobs::run(&todo, self.threads, work, |_, line| {
                journal.push(&line)?;
                done.add(line);
                steps += 1;
                on_step(steps, total, "budgets");
                Ok(())
            })?;
        }
        let mut fitted = Vec::new();
        for (Candidate { label, .. }, policy, key) in open {
            if let Some((reason, held)) = done.refused.get(&key) {
                let (label, reason) = (label.clone(), reason.clone());
                refused.push(Refused { label, reason, held: held.map(CacheBytes::kept_of_full) });
                continue;
            }
            let policy = match done.size(&key) {
                Some(size) => policy.with_budget(self.budget(size)),
                None => policy,
            };
            fitted.push(Fitted {
                label: label.clone(),
                key: fingerprint::of_policy(&policy),
                policy,
            });
        }
        Ok((fitted, refused))
    }

    fn budget(&self, size: usize) -> Budget {
        match self.plan.unit {
            Unit::Tokens => Budget::Tokens(size),
            Unit::Share => Budget::Ratio(size as f64 / 1000.0),
        }
    }

    /// The largest budget of a policy in one window, not above that of the windows before.
    fn largest(
        &self,
        reference: &Reference<'_>,
        policy: &Policy,
        key: &str,
        window: usize,
        before: Option<usize>,
    ) -> Result<Line> {
        let (target, key) = (self.plan.target, key.to_owned());
        if !policy.takes_budget() {
            let held = reference.held(policy.clone())?;
            return Ok(if self.fits(held.kept_of_full()) {
                Line::Budget { policy: key, window, size: None, held }
            } else {
                let reason =
                    format!("it has no budget and holds {:.1} %", 100.0 * held.kept_of_full());
                Line::Refused { policy: key, reason, held: Some(held) }
            });
        }
        let most = before.unwrap_or(match self.plan.unit {
            Unit::Tokens => reference.prompt().len(),
            Unit::Share => 1000,
        });
        let budget = |size| self.budget(size);
        let (found, held) = reference.largest_budget(policy, budget, most, target, before)?;
        let (size, share) = match found {
            Largest::Size(size, share) | Largest::TooMuch(size, share) => (size, share),
            Largest::Refused(reason) => {
                return Ok(Line::Refused { policy: key, reason, held: None });
            }
        };
        Ok(match held.filter(|_| self.fits(share)) {
            Some(held) => Line::Budget { policy: key, window, size: Some(size), held },
            None => {
                let (budget, share) = (self.budget(size), 100.0 * share);
                let reason = format!("its smallest budget here, {budget}, holds {share:.1} %");
                Line::Refused { policy: key, reason, held }
            }
        })
    }
}

impl Score {
    fn of(measured: &Measured) -> Self {
        let errors = &measured.output_error;
        Self {
            kl: measured.mean_kl() as f32,
            agreement: measured.agreement as f32,
            output_error: (errors.iter().sum::<f64>() / errors.len().max(1) as f64) as f32,
            overlap: measured.mean_overlap().map(|overlap| overlap as f32),
            held: measured.cache_after_prompt,
        }
    }
}

impl Done {
    fn add(&mut self, line: Line) {
        match line {
            Line::Budget { policy, window, size, held } => {
                self.budgets.insert((policy, window), (size, held));
            }
            Line::Refused { policy, reason, held } => {
                self.refused.insert(policy, (reason, held));
            }
            Line::Score { policy, window, score } => {
                self.scores.insert((policy, window), score);
            }
        }
    }

    fn of<'a, T>(
        map: &'a BTreeMap<(String, usize), T>,
        key: &'a str,
        windows: usize,
    ) -> impl Iterator<Item = &'a T> {
        (0..windows).filter_map(move |window| map.get(&(key.to_owned(), window)))
    }

    /// The least of the budgets found so far; `None` if there is none yet, or the policy has no
    /// budget.
    fn size(&self, key: &str) -> Option<usize> {
        let own = self.budgets.iter().filter(|((of, _), _)| of == key);
        own.filter_map(|(_, (size, _))| *size).min()
    }

    /// Whether the budget of a candidate is known for window `index`: it is refused, it was
    /// searched there, or it held the same in the two windows before.
    fn is_settled(&self, key: &str, index: usize) -> bool {
        let known = |window: usize| self.budgets.get(&(key.to_owned(), window)).copied();
        let same = |window: usize| match (known(window - 2), known(window - 1)) {
            (Some((size, held)), Some((other, again))) => {
                let (held, again) = (held.kept_of_full(), again.kept_of_full());
                size == other && (held - again).abs() <= SAME * held
            }
            _ => false,
        };
        self.refused.contains_key(key) || known(index).is_some() || (2..=index).any(same)
    }

    fn mean(&self, key: &str, windows: usize, of: fn(&Score) -> f32) -> Mean {
        let numbers = Self::of(&self.scores, key, windows).map(of).map(f64::from);
        Mean::of(&numbers.collect::<Vec<_>>())
    }

    fn most_held(&self, key: &str, windows: usize) -> f64 {
        let held = Self::of(&self.scores, key, windows).map(|score| score.held.kept_of_full());
        held.fold(0.0, f64::max)
    }

    fn ranked(&self, one: &Fitted, round: usize, windows: usize, best: &str) -> Ranked {
        let scores = || Self::of(&self.scores, &one.key, windows);
        let of_best = Self::of(&self.scores, best, windows);
        let above = scores().zip(of_best).map(|(one, best)| f64::from(one.kl) - f64::from(best.kl));
        let overlaps = scores().filter_map(|score| score.overlap).map(f64::from);
        let overlaps: Vec<f64> = overlaps.collect();
        let mean = |of: fn(&Score) -> f32| self.mean(&one.key, windows, of);
        Ranked {
            label: one.label.clone(),
            budget: one.policy.budget().map_or_else(|| "-".into(), |budget| budget.to_string()),
            policy: one.policy.clone(),
            round,
            kl: mean(|score| score.kl),
            above_best: Mean::of(&above.collect::<Vec<_>>()),
            agreement: mean(|score| score.agreement).mean,
            output_error: mean(|score| score.output_error).mean,
            overlap: (!overlaps.is_empty()).then(|| Mean::of(&overlaps).mean),
            held: self.most_held(&one.key, windows),
        }
    }
}
