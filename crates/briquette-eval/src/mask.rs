//! Heads silenced, the masking test of CompressKV: a head that retrieves is missed when its
//! attention returns zeros.
//!
//! The heads that score highest in a profile are silenced, the best `n` of the whole model, and the
//! model is asked for needles with everything kept in its cache. As a control, `n` heads are drawn
//! by chance, others for every prompt.

use std::sync::Arc;

use briquette::{CacheShape, HeadScoreKind, Policy, Profile};
use briquette_models::{GenerateOptions, Model, generate};
use rand::seq::SliceRandom;
use serde::Serialize;
use strum::IntoStaticStr;

use crate::{
    Error, Result, jobs,
    journal::Steps,
    observe,
    settings::check_list,
    stats::Proportion,
    tasks::{needle::NeedlePrompt, seed},
};

/// Criterion that heads are chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Choice {
    /// [`HeadScores::semantic`](briquette::HeadScores::semantic)
    Semantic,
    /// [`HeadScores::copy_paste`](briquette::HeadScores::copy_paste)
    CopyPaste,
    /// [`HeadScores::headkv`](briquette::HeadScores::headkv)
    Headkv,
    /// Chance.
    Random,
}

impl Choice {
    /// Every choice.
    pub const ALL: [Self; 4] = [Self::Semantic, Self::CopyPaste, Self::Headkv, Self::Random];

    /// As in tables.
    pub fn name(self) -> &'static str {
        self.into()
    }

    fn kind(self) -> Option<HeadScoreKind> {
        match self {
            Self::Semantic => Some(HeadScoreKind::Semantic),
            Self::CopyPaste => Some(HeadScoreKind::CopyPaste),
            Self::Headkv => Some(HeadScoreKind::Headkv),
            Self::Random => None,
        }
    }
}

/// Answers with some heads silenced.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The criterion they were chosen by.
    pub choice: Choice,
    /// How many.
    pub masked: usize,
    /// Which, as layer and query head, the best first; empty for a random choice, which differs
    /// from prompt to prompt.
    pub heads: Vec<(usize, usize)>,
    /// Answers right in every token.
    pub exact: Proportion,
    /// Right tokens; an answer is one trial.
    pub per_token: Proportion,
}

/// Right tokens by the name of the choice, the number of heads, and the number of the prompt.
pub type Right = Steps<(String, usize, usize), usize>;

/// Asks every prompt once for each choice and number of heads, save those whose answers are in
/// `kept`. `on_prompt` hears of each answer: [`steps`] in all.
///
/// # Errors
/// [`Error::Setting`] without a prompt or a number of heads, [`Error::TooManyHeads`],
/// [`Error::Cache`] for a broken profile or that of another model, and failures of the model.
#[expect(clippy::too_many_arguments, reason = "one caller, and each is its own")]
pub fn run(
    model: &Model,
    profile: &Profile,
    prompts: &[NeedlePrompt],
    counts: &[usize],
    seed: u64,
    threads: usize,
    kept: &mut Right,
    mut on_prompt: impl FnMut(Choice),
) -> Result<Vec<Cell>> {
    let shape = model.cache_shape();
    profile.check()?;
    profile.check_shape(shape)?;
    check(counts, shape.layers * shape.query_heads)?;
    if prompts.is_empty() {
        return Err(Error::Setting { name: "samples", reason: "no prompt to ask".into() });
    }
    let steps = plan(counts, prompts.len());
    let key = |step: &Step| (step.choice.name().to_owned(), step.count, step.prompt);
    let (found, todo): (Vec<&Step>, Vec<&Step>) =
        steps.iter().partition(|step| kept.get(&key(step)).is_some());
    found.iter().for_each(|step| on_prompt(step.choice));
    let work = |step: &&Step| {
        let mut heads = match step.choice.kind() {
            Some(kind) => ranked(profile, kind),
            None => shuffled(shape, &[seed, step.prompt as u64]),
        };
        heads.truncate(step.count);
        ask(model, &heads, &prompts[step.prompt])
    };
    jobs::run(&todo, threads, work, |step, tokens| {
        kept.push(key(step), tokens)?;
        on_prompt(step.choice);
        Ok(())
    })?;
    kept.finish()?;

    let mut cells = Vec::new();
    for choice in Choice::ALL {
        for &count in counts {
            // With no head masked all choices are one.
            let of = |step: &&Step| step.count == count && (step.choice == choice || count == 0);
            let answers = steps.iter().filter(of);
            let answers =
                answers.filter_map(|step| Some((*kept.get(&key(step))?, &prompts[step.prompt])));
            let mut heads = choice.kind().map_or_else(Vec::new, |kind| ranked(profile, kind));
            heads.truncate(count);
            cells.push(Cell::new(choice, count, heads, answers));
        }
    }
    Ok(cells)
}

/// Answers a run takes.
pub fn steps(counts: &[usize], prompts: usize) -> usize {
    plan(counts, prompts).len()
}

/// One answer.
struct Step {
    choice: Choice,
    /// Heads silenced.
    count: usize,
    prompt: usize,
}

fn plan(counts: &[usize], prompts: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for &count in counts {
        let choices = if count == 0 { &Choice::ALL[..1] } else { &Choice::ALL };
        for &choice in choices {
            for prompt in 0..prompts {
                steps.push(Step { choice, count, prompt });
            }
        }
    }
    steps
}

fn check(counts: &[usize], heads: usize) -> Result<()> {
    check_list("counts", counts)?;
    match counts.iter().find(|count| **count > heads) {
        Some(&asked) => Err(Error::TooManyHeads { asked, heads }),
        None => Ok(()),
    }
}

/// Layers and query heads, the highest score first; of equal ones the lower layer, then the lower
/// head.
fn ranked(profile: &Profile, kind: HeadScoreKind) -> Vec<(usize, usize)> {
    let table = profile.heads.get(kind);
    let mut heads = all(profile.shape);
    // Stable: equal scores stay in order.
    heads.sort_by(|a, b| table[b.0][b.1].total_cmp(&table[a.0][a.1]));
    heads
}

fn shuffled(shape: CacheShape, seed: &[u64]) -> Vec<(usize, usize)> {
    let mut heads = all(shape);
    heads.shuffle(&mut seed::rng(seed));
    heads
}

fn all(shape: CacheShape) -> Vec<(usize, usize)> {
    (0..shape.layers)
        .flat_map(|layer| (0..shape.query_heads).map(move |head| (layer, head)))
        .collect()
}

/// Right tokens of the answer with these heads silent.
fn ask(model: &Model, silent: &[(usize, usize)], prompt: &NeedlePrompt) -> Result<usize> {
    let ops = Arc::new(observe::Masked::new(model, silent));
    let mut cache = observe::cache(model, Policy::full(), ops)?;
    let whole = [&prompt.context[..], &prompt.question].concat();
    let options =
        GenerateOptions { max_new_tokens: prompt.answer.len(), ..GenerateOptions::default() };
    let (generation, _) = generate(model, &whole, &mut cache, &options, |_| {})?;
    Ok(prompt.right(&generation.tokens))
}

impl Cell {
    fn new<'a>(
        choice: Choice,
        masked: usize,
        heads: Vec<(usize, usize)>,
        answers: impl Iterator<Item = (usize, &'a NeedlePrompt)>,
    ) -> Self {
        let (mut exact, mut tokens, mut trials) = (0.0, 0.0, 0);
        for (right, prompt) in answers {
            let share = right as f64 / prompt.answer.len().max(1) as f64;
            exact += f64::from(u8::from(right == prompt.answer.len()));
            tokens += share;
            trials += 1;
        }
        Self {
            choice,
            masked,
            heads,
            exact: Proportion::wilson(exact, trials),
            per_token: Proportion::wilson(tokens, trials),
        }
    }
}

#[cfg(test)]
mod tests {
    use briquette::HeadScores;

    use super::*;

    fn profile() -> Profile {
        let table = vec![vec![0.1, 0.5], vec![0.5, 0.9]];
        let shape = CacheShape { layers: 2, query_heads: 2, kv_heads: 1, head_dim: 2 };
        let [semantic, copy_paste, headkv] = [table.clone(), table.clone(), table];
        Profile::new(shape, HeadScores { semantic, copy_paste, headkv }, vec![0.5, 0.5])
    }

    #[test]
    fn the_highest_scores_stand_first() {
        let heads = ranked(&profile(), HeadScoreKind::Semantic);
        assert_eq!(heads, [(1, 1), (0, 1), (1, 0), (0, 0)]);
    }

    #[test]
    fn chance_follows_the_seed_and_fewer_heads_are_a_part_of_more() {
        let shape = profile().shape;
        let mut heads = shuffled(shape, &[1, 2]);
        assert_eq!(heads, shuffled(shape, &[1, 2]));
        assert!((0..9).any(|seed| shuffled(shape, &[seed]) != heads));
        heads.sort_unstable();
        assert_eq!(heads, all(shape));
    }

    #[test]
    fn no_head_is_masked_once_for_all() {
        assert_eq!(steps(&[0, 1, 2], 10), 10 + 2 * 4 * 10);
        assert_eq!(steps(&[3], 10), 40);
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        for (counts, reason) in [(&[][..], "no value"), (&[1, 2, 1], "twice"), (&[0, 9], "9 heads")]
        {
            let error = check(counts, 8).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        assert!(check(&[0, 8], 8).is_ok());
    }
}
