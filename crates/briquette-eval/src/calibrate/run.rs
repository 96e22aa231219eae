use std::{path::Path, sync::Arc};

use briquette::{
    Budget, HeadScores, Policy, Profile, QueryStatistics, allocate::Uniform, ops::HeadPattern,
};
use briquette_models::{Model, Tokenizer, prefill};
use briquette_ops::minference_candidates;
use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use super::{
    errors,
    heads::{self, HeadSample},
    queries,
};
use crate::{
    Error, Result,
    fidelity::most_likely,
    jobs,
    journal::{Accept, Journal},
    observe, settings,
    tasks::{
        haystack::Haystack,
        needle::{NeedlePrompt, NeedleTask, Place},
        sample::MOST_SAMPLES,
        seed,
        text::Text,
    },
    tensors::{numbers, row},
};

/// Tokens behind a chunk of text that layer errors are measured at.
const FOLLOWING: usize = 32;

/// The prompts of a calibration differ from those of the tasks with the same seed.
const SEED: u64 = 0x0ca1_1b4a;

/// Prompts that a calibration measures on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Prompts of each length, and chunks of each length of each text.
    pub prompts: usize,
    /// Tokens of a prompt and its answer, or of a chunk of text.
    pub lengths: Vec<usize>,
    /// Seed of the prompts.
    pub seed: u64,
    /// Tokens of the prompt on which each head's pattern of sparse attention is searched; `None`
    /// searches none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patterns: Option<usize>,
}

/// A profile to be made.
#[derive(Debug)]
pub struct Calibration<'a> {
    /// The model.
    pub model: &'a Model,
    /// Its tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The text that needles are hidden in.
    pub haystack: &'a Haystack,
    /// Further data sets for the layer errors.
    pub texts: &'a [Text],
    /// The sizes.
    pub plan: Plan,
    /// Name of the model in the profile.
    pub name: String,
    /// Its fingerprint, by [`of_model`](crate::fingerprint::of_model).
    pub weights: String,
    /// Which earlier results are accepted.
    pub accept: Accept,
    /// The share of retrieval prompts that the model must answer right, in 0..=1: the heads of a
    /// model that finds nothing say nothing of retrieval.
    pub min_right: f64,
    /// Prompts that run at a time.
    pub threads: usize,
}

/// A profile that was made.
#[derive(Debug)]
pub struct Calibrated {
    /// The profile.
    pub profile: Profile,
    /// Retrieval prompts that the model answers right in every token, each token after the right
    /// ones before it.
    pub right: usize,
    /// Retrieval prompts.
    pub prompts: usize,
    /// The results of the prompts. To be removed when the profile has been written.
    pub journal: Journal,
}

/// A prompt, and the tokens behind it.
struct Forced {
    prompt: Vec<u32>,
    following: Vec<u32>,
}

/// One line of the journal: numbers count the prompts of a data set, set 0 holds the retrieval
/// prompts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
enum Step {
    Heads {
        number: usize,
        right: bool,
        #[serde(flatten)]
        sample: HeadSample,
    },
    Errors {
        set: usize,
        number: usize,
        layers: Vec<f32>,
    },
}

impl Calibration<'_> {
    /// Prompts to run: retrieval prompts for the heads, and for the layers these and the chunks of
    /// text.
    pub fn steps(&self) -> usize {
        let of_set = self.plan.prompts.saturating_mul(self.plan.lengths.len());
        of_set.saturating_mul(2 + self.texts.len())
    }

    /// Measures, and keeps the result of every prompt in a [`Journal`] at `partial`: a run that was
    /// killed goes on where it was. `on_steps` hears of finished steps, first of those found in the
    /// journal.
    ///
    /// The same plan gives the same profile, byte for byte.
    ///
    /// # Errors
    /// [`Error::Setting`] for a plan without prompts, [`Error::ContextTooShort`],
    /// [`Error::TextTooShort`], [`Error::AnswerNotFound`], [`Error::TooFewRight`],
    /// [`Error::NotFinite`] for a model that overflows, what [`NeedleTask::prompt`] and
    /// [`Journal::open`] refuse, and failures of the model.
    pub fn run(&self, partial: &Path, mut on_steps: impl FnMut(usize)) -> Result<Calibrated> {
        self.check()?;
        let prompts = self.prompts()?;
        let mut sets = vec![prompts.iter().map(whole).collect::<Vec<_>>()];
        for text in self.texts {
            sets.push(self.chunks(text)?);
        }

        let (mut journal, found) = Journal::open::<Step>(partial, &self.settings(), self.accept)?;
        on_steps(found.len());
        let mut results = Results::new(prompts.len(), sets.len());
        for step in found {
            results.add(step);
        }

        let mut keep = |results: &mut Results, step: Step| -> Result<()> {
            journal.push(&step)?;
            results.add(step);
            on_steps(1);
            Ok(())
        };
        let todo: Vec<usize> =
            (0..prompts.len()).filter(|number| results.heads[*number].is_none()).collect();
        let work = |number: &usize| self.heads(*number, &prompts[*number]);
        jobs::run(&todo, self.threads, work, |_, step| keep(&mut results, step))?;
        let samples: Vec<&HeadSample> =
            results.heads.iter().flatten().map(|(_, sample)| sample).collect();
        let scores = heads::mean(&samples);
        let right = results.heads.iter().flatten().filter(|(right, _)| *right).count();
        let least = (self.min_right * prompts.len() as f64).ceil() as usize;
        if right < least {
            return Err(Error::TooFewRight { right, prompts: prompts.len(), least });
        }

        let policy = self.small_cache(&scores);
        let todo: Vec<(usize, usize)> = (0..sets.len())
            .flat_map(|set| (0..prompts.len()).map(move |number| (set, number)))
            .filter(|(set, number)| results.errors[*set][*number].is_none())
            .collect();
        let work = |&(set, number): &(usize, usize)| {
            let layers = self.errors(&policy, &sets[set][number])?;
            Ok(Step::Errors { set, number, layers })
        };
        jobs::run(&todo, self.threads, work, |_, step| keep(&mut results, step))?;

        let shape = self.model.cache_shape();
        let sets_errors = results.errors.iter();
        let errors: Vec<Vec<&[f32]>> =
            sets_errors.map(|set| set.iter().flatten().map(Vec::as_slice).collect()).collect();
        let layer_errors = errors::combine(&errors, shape.layers);
        let mut profile =
            Profile::new(shape, scores, layer_errors).with_queries(self.queries(&sets)?);
        (profile.model, profile.made) = (self.name.clone(), self.made(right, prompts.len()));
        (profile.weights, profile.patterns) = (Some(self.weights.clone()), self.patterns()?);
        profile.check()?;
        Ok(Calibrated { profile, right, prompts: prompts.len(), journal })
    }

    fn check(&self) -> Result<()> {
        let fail = |name, reason: &str| Err(Error::Setting { name, reason: reason.into() });
        let Plan { prompts, lengths, .. } = &self.plan;
        if *prompts == 0 {
            return fail("prompts", "at least 1 is needed");
        }
        if *prompts > MOST_SAMPLES {
            return fail("prompts", &format!("at most {MOST_SAMPLES} can be made"));
        }
        if !(0.0..=1.0).contains(&self.min_right) {
            return fail("min-right", "a share from 0 to 1 is needed");
        }
        settings::check_list("tokens", lengths)?;
        if self.plan.patterns == Some(0) {
            return fail("patterns", "at least 1 token is needed");
        }
        let context = self.model.config().max_position_embeddings;
        let following = if self.texts.is_empty() { 0 } else { FOLLOWING };
        let lengths = lengths.iter().map(|length| length.saturating_add(following));
        match lengths.chain(self.plan.patterns).find(|length| *length > context) {
            Some(length) => Err(Error::ContextTooShort { length, context }),
            None => Ok(()),
        }
    }

    fn settings(&self) -> serde_json::Value {
        let named = (self.model, self.name.as_str(), self.weights.as_str());
        settings::of("calibrate", named, Some(self.haystack), self.texts, &self.plan)
    }

    fn made(&self, right: usize, prompts: usize) -> String {
        let Plan { prompts: each, lengths, seed, patterns } = &self.plan;
        let names = self.texts.iter().map(Text::name).collect::<Vec<_>>().join(", ");
        let texts = if names.is_empty() { String::new() } else { format!(" and on {names}") };
        let patterns = patterns.map_or_else(String::new, |length| {
            format!("; patterns of sparse attention on a prompt of {length} tokens")
        });
        format!(
            "briquette {} calibrate: {each} retrieval prompts each of {} tokens, seed {seed}, of which the model \
             answers {right} of {prompts} right; layer errors on these{texts}{patterns}",
            env!("CARGO_PKG_VERSION"),
            lengths.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        )
    }

    /// The task of its prompts, and the seed of that.
    fn task(&self) -> Result<(NeedleTask<'_>, u64)> {
        let seed = seed::rng(&[self.plan.seed, SEED]).next_u64();
        Ok((NeedleTask::new(self.tokenizer, self.haystack, seed)?, seed))
    }

    fn prompts(&self) -> Result<Vec<NeedlePrompt>> {
        let Plan { prompts, lengths, .. } = &self.plan;
        let (task, task_seed) = self.task()?;
        let mut all = Vec::new();
        for &length in lengths {
            for sample in 0..*prompts {
                let mut rng = seed::rng(&[task_seed, length as u64, sample as u64]);
                let depth = rng.random_range(0..=100);
                let prompt = task.prompt(Place { length, depth, needles: 1, sample })?;
                all.push(prompt);
            }
        }
        Ok(all)
    }

    fn chunks(&self, text: &Text) -> Result<Vec<Forced>> {
        let mut chunks = Vec::new();
        for &length in &self.plan.lengths {
            for window in text.windows(length + FOLLOWING, self.plan.prompts, None)? {
                let mut prompt = window.tokens;
                let following = prompt.split_off(length);
                chunks.push(Forced { prompt, following });
            }
        }
        Ok(chunks)
    }

    fn heads(&self, number: usize, prompt: &NeedlePrompt) -> Result<Step> {
        let Some(span) = prompt.answer_span() else {
            return Err(Error::AnswerNotFound { number: prompt.number.clone() });
        };
        let context = prompt.context.len();
        let Forced { mut prompt, following: answer } = whole(prompt);
        // The last token of the question brings the first of the answer.
        let last = prompt.split_off(prompt.len() - 1);
        let fed = [&last[..], &answer[..answer.len() - 1]].concat();

        let weights = Arc::new(observe::Weights::new());
        let mut cache = observe::cache(self.model, Policy::full(), weights.clone())?;
        prefill(self.model, &[&prompt], &mut cache, None)?;
        weights.watch();
        let logits = numbers(self.model.forward(row(&fed, self.model), &mut cache)?)?;
        finite(&logits, "a logit")?;
        let mut rows = logits.chunks(self.model.config().vocab_size).zip(&answer);
        let right = rows.all(|(row, token)| most_likely(row) == Some(*token as usize));
        let heads = self.model.cache_shape().query_heads;
        let sample = HeadSample::of(&weights.take()?, heads, context, &span);
        Ok(Step::Heads { number, right, sample })
    }

    /// Statistics of the queries of the first prompts of each data set.
    fn queries(&self, sets: &[Vec<Forced>]) -> Result<QueryStatistics> {
        /// Sums over that many prompts of a set settle.
        const EACH: usize = 8;
        let texts: Vec<&[u32]> =
            sets.iter().flat_map(|set| set.iter().take(EACH)).map(|it| &it.prompt[..]).collect();
        queries::statistics(self.model, &texts)
    }

    /// The pattern of sparse attention of each query head that is closest to dense attention on one
    /// prompt (MInference, Algorithm 1).
    fn patterns(&self) -> Result<Option<Vec<Vec<HeadPattern>>>> {
        let Some(length) = self.plan.patterns else { return Ok(None) };
        let (task, _) = self.task()?;
        let prompt = task.prompt(Place { length, depth: 50, needles: 1, sample: 0 })?;
        let search = Arc::new(observe::Patterns::new(&minference_candidates(length)));
        let mut cache = observe::cache(self.model, Policy::full(), search.clone())?;
        prefill(self.model, &[&whole(&prompt).prompt], &mut cache, None)?;
        Ok(Some(search.take()))
    }

    /// CompressKV's selection by these scores, with one budget for every layer.
    fn small_cache(&self, scores: &HeadScores) -> Policy {
        let shape = self.model.cache_shape();
        let profile = Profile::new(shape, scores.clone(), vec![1.0; shape.layers]);
        Policy::compresskv(Budget::Tokens(errors::CACHE))
            .with_allocator(Uniform {})
            .with_profile(Arc::new(profile))
    }

    fn errors(&self, policy: &Policy, forced: &Forced) -> Result<Vec<f32>> {
        let compared = Arc::new(observe::Compared::new(self.model, policy.clone())?);
        let mut cache = observe::cache(self.model, Policy::full(), compared.clone())?;
        prefill(self.model, &[&forced.prompt], &mut cache, None)?;
        compared.watch();
        // The small cache is compressed after a prompt only: the tokens may as well come at once.
        self.model.hidden_states(row(&forced.following, self.model), &mut cache)?;
        let layers: Vec<f32> = compared
            .take()?
            .iter()
            .map(|[differences, norms]| errors::relative(differences, norms) as f32)
            .collect();
        finite(&layers, "the error of a layer's attention output")?;
        Ok(layers)
    }
}

fn finite(numbers: &[f32], what: &'static str) -> Result<()> {
    match numbers.iter().all(|number| number.is_finite()) {
        true => Ok(()),
        false => Err(Error::NotFinite { what }),
    }
}

fn whole(prompt: &NeedlePrompt) -> Forced {
    Forced {
        prompt: [&prompt.context[..], &prompt.question].concat(),
        following: prompt.answer.clone(),
    }
}

struct Results {
    heads: Vec<Option<(bool, HeadSample)>>,
    /// Of each data set.
    errors: Vec<Vec<Option<Vec<f32>>>>,
}

impl Results {
    fn new(prompts: usize, sets: usize) -> Self {
        Self { heads: vec![None; prompts], errors: vec![vec![None; prompts]; sets] }
    }

    fn add(&mut self, step: Step) {
        match step {
            Step::Heads { number, right, sample } => {
                if let Some(place) = self.heads.get_mut(number) {
                    *place = Some((right, sample));
                }
            }
            Step::Errors { set, number, layers } => {
                if let Some(place) = self.errors.get_mut(set).and_then(|set| set.get_mut(number)) {
                    *place = Some(layers);
                }
            }
        }
    }
}
