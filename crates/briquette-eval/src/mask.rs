//! Heads silenced, the masking test of CompressKV: a head that retrieves is missed when its
//! attention returns zeros.
//!
//! The heads that score highest in a profile are silenced, the best `n` of the whole model, and the
//! model is asked for needles with everything kept in its cache. As a control, `n` heads are drawn
//! by chance, others for every prompt.

use std::{collections::BTreeMap, sync::Arc};

use briquette::{HeadScoreKind, Policy, Profile};
use briquette_models::{GenerateOptions, Model, generate};
use rand::seq::SliceRandom;
use serde::Serialize;

use crate::{
    Error, Result, jobs, journal::Steps, observe, settings::check_list, stats::Proportion, tasks,
};

/// The scores that heads are chosen by, and chance, which is none.
const CHOICES: [(&str, Option<HeadScoreKind>); 4] = [
    ("semantic", Some(HeadScoreKind::Semantic)),
    ("copy-paste", Some(HeadScoreKind::CopyPaste)),
    ("headkv", Some(HeadScoreKind::Headkv)),
    ("random", None),
];

/// Answers with some heads silenced.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The score of [`HeadScores`](briquette::HeadScores) they were chosen by, or `random`.
    pub choice: &'static str,
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
/// `kept`. `on_answer` hears how many answers there are, and of how many.
///
/// # Errors
/// [`Error::Setting`] without a number of heads or a prompt, [`Error::TooManyHeads`],
/// [`Error::Cache`] for a broken profile or that of another model, and failures of the model.
pub fn run(
    (model, profile): (&Model, &Profile),
    prompts: &[tasks::needle::NeedlePrompt],
    counts: &[usize],
    seed: u64,
    threads: usize,
    kept: &mut Right,
    mut on_answer: impl FnMut(usize, usize),
) -> Result<Vec<Cell>> {
    profile.check()?;
    profile.check_shape(model.cache_shape())?;
    check_list("counts", counts)?;
    if prompts.is_empty() {
        return Err(Error::Setting { name: "samples", reason: "no prompt to ask".into() });
    }
    let heads = profile.shape.layers * profile.shape.query_heads;
    if let Some(&asked) = counts.iter().find(|count| **count > heads) {
        return Err(Error::TooManyHeads { asked, heads });
    }
    // With no head masked all choices are one.
    let name = |choice, count: usize| if count == 0 { CHOICES[0].0 } else { choice };
    let key = |choice, count, prompt| (name(choice, count).to_owned(), count, prompt);
    let mut steps = BTreeMap::new();
    for (choice, kind) in CHOICES {
        for &count in counts {
            steps.extend((0..prompts.len()).map(|prompt| (key(choice, count, prompt), kind)));
        }
    }
    let todo: Vec<_> = steps.iter().filter(|(step, _)| kept.get(step).is_none()).collect();
    let mut done = steps.len() - todo.len();
    on_answer(done, steps.len());
    let ask = |&((_, count, prompt), kind): &(&(String, usize, usize), &Option<HeadScoreKind>)| {
        let heads = chosen(profile, *kind, &[seed, *prompt as u64]);
        let ops = Arc::new(observe::Masked::new(model, &heads[..*count]));
        let mut cache = observe::cache(model, Policy::full(), ops)?;
        let prompt = &prompts[*prompt];
        let whole = [&prompt.context[..], &prompt.question].concat();
        let options =
            GenerateOptions { max_new_tokens: prompt.answer.len(), ..GenerateOptions::default() };
        let (generation, _) = generate(model, &whole, &mut cache, &options, |_| {})?;
        Ok(prompt.right(&generation.tokens))
    };
    jobs::run(&todo, threads, ask, |(step, _), right| {
        kept.push((*step).clone(), right)?;
        done += 1;
        on_answer(done, steps.len());
        Ok(())
    })?;
    kept.finish()?;

    let mut cells = Vec::new();
    for (choice, kind) in CHOICES {
        let ranked = kind.map_or_else(Vec::new, |_| chosen(profile, kind, &[]));
        for &masked in counts {
            let share = |number: usize| {
                let right = *kept.get(&key(choice, masked, number))?;
                Some(right as f64 / prompts[number].answer.len().max(1) as f64)
            };
            let shares: Vec<f64> = (0..prompts.len()).filter_map(share).collect();
            let exact = shares.iter().filter(|share| **share == 1.0).count();
            cells.push(Cell {
                choice,
                masked,
                heads: ranked.iter().take(masked).copied().collect(),
                exact: Proportion::wilson(exact as f64, shares.len()),
                per_token: Proportion::wilson(shares.iter().sum(), shares.len()),
            });
        }
    }
    Ok(cells)
}

/// All heads, by layer and query head: the highest score first, of equal ones the lower layer, then
/// the lower head; without a score by chance.
fn chosen(profile: &Profile, kind: Option<HeadScoreKind>, seed: &[u64]) -> Vec<(usize, usize)> {
    let of = |layer| (0..profile.shape.query_heads).map(move |head| (layer, head));
    let mut heads: Vec<(usize, usize)> = (0..profile.shape.layers).flat_map(of).collect();
    match kind.map(|kind| profile.heads.get(kind)) {
        // Stable: equal scores stay in order.
        Some(scores) => heads.sort_by(|a, b| scores[b.0][b.1].total_cmp(&scores[a.0][a.1])),
        None => heads.shuffle(&mut tasks::seed::rng(seed)),
    }
    heads
}

#[cfg(test)]
mod tests {
    use briquette::{CacheShape, HeadScores};

    use super::*;

    #[test]
    fn the_highest_scores_stand_first_and_chance_follows_the_seed() {
        let table = || vec![vec![0.1, 0.5], vec![0.5, 0.9]];
        let shape = CacheShape { layers: 2, query_heads: 2, kv_heads: 1, head_dim: 2 };
        let heads = HeadScores { semantic: table(), copy_paste: table(), headkv: table() };
        let profile = Profile::new(shape, heads, vec![0.5, 0.5]);
        let ranked = chosen(&profile, Some(HeadScoreKind::Semantic), &[]);
        assert_eq!(ranked, [(1, 1), (0, 1), (1, 0), (0, 0)]);
        let drawn = |seed: &[u64]| chosen(&profile, None, seed);
        let mut heads = drawn(&[1, 2]);
        assert_eq!(heads, drawn(&[1, 2]));
        assert!((0..9).any(|seed| drawn(&[seed]) != heads));
        heads.sort_unstable();
        assert_eq!(heads, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    }
}
