use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use super::{
    candidate::Candidate,
    file::RunFile,
    header::{Header, ModelHeader},
    model::OpenModel,
    own::OwnPolicy,
    tasks::{Planned, Work},
    text::Protocol,
    twice::twice,
};
use crate::{
    Error, Result, files, fingerprint,
    metrics::Metric,
    policy::NamedPolicy,
    record::Key,
    tasks::{Question, Sample, Turn, text::Window},
    warnings,
};

/// Everything a run file asks for.
#[derive(Debug)]
pub struct Plan {
    /// The name of the run.
    pub name: String,
    /// One a model, in the order of the run file.
    pub models: Vec<ModelPlan>,
    /// The tasks.
    pub tasks: Vec<Planned>,
    /// Messages about damaged records that tasks left out, as they were told to, each with the
    /// label of the task.
    pub skipped: Vec<String>,
}

/// Units of one model, with its policies and samples.
#[derive(Debug)]
pub struct ModelPlan {
    /// The model, without its weights.
    pub opened: OpenModel,
    /// The policies that can hold.
    pub(super) entries: Vec<PlannedPolicy>,
    /// The policies that cannot, each with the reason.
    pub(super) unavailable: Vec<(Key, String)>,
    /// The samples of each task and seed.
    pub(super) groups: Vec<Group>,
    /// The units, those of one sample behind each other.
    pub units: Vec<Unit>,
}

#[derive(Debug)]
pub(super) struct PlannedPolicy {
    pub(super) entry: NamedPolicy,
    pub(super) budget: String,
    pub(super) fingerprint: String,
    /// The share of the full cache's bytes that its budget is to hold.
    pub(super) held: Option<f64>,
    /// The file of what is read before every sample.
    pub(super) prefix: Option<PathBuf>,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) task: usize,
    pub(super) data: TaskData,
}

/// Samples or windows that a task is measured on.
#[derive(Debug)]
pub(super) enum TaskData {
    Samples(Vec<Sample>),
    Windows(Vec<Window>),
}

/// One thing to be measured: a policy on a sample.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Its name in the results: no other unit has the same.
    pub key: Key,
    /// Fingerprint of policy and sample: a stored result with another one is of something else.
    pub fingerprint: String,
    /// Tokens it gives to the model, without answers.
    pub tokens: usize,
    pub(super) entry: usize,
    pub(super) group: usize,
    pub(super) sample: usize,
}

/// The part of a plan one task and policy have.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Share {
    /// The label of the model.
    pub model: String,
    /// The label of the task.
    pub task: String,
    /// The label of the policy.
    pub policy: String,
    /// Its budget as text.
    pub budget: String,
    /// Units.
    pub units: usize,
    /// Units whose results are not there yet.
    pub left: usize,
    /// Tokens that those give to the model, without answers.
    pub tokens: usize,
}

impl Plan {
    /// Expands a run file: reads tokenizers and data, makes all samples, and checks that each fits
    /// the context of its model. Of the weights only the fingerprint is taken; `other_weights` says
    /// that profiles of others are.
    ///
    /// # Errors
    /// [`Error::RunFile`] without a task, errors of models, policies and tasks,
    /// [`Error::SampleTooLong`], [`Error::SampleTwice`].
    pub fn new(file: &RunFile, other_weights: bool) -> Result<Self> {
        Self::with_tasks(file, Vec::new(), other_weights)
    }

    /// Expands a run file with tasks of one's own behind those of the file, which may have none.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`Error::RunFile`] for a label that two tasks have.
    pub fn with_tasks(file: &RunFile, own: Vec<Planned>, other_weights: bool) -> Result<Self> {
        Self::with_policies(file, &[], own, other_weights)
    }

    /// Expands a run file with policies of one's own behind those of the file, and tasks as
    /// [`with_tasks`](Self::with_tasks) takes them. Either may be missing from the file.
    ///
    /// The policies are measured as they are: `change` of the file is not made to them, and its
    /// `budgets` are for those that take one and have none.
    ///
    /// # Errors
    /// As [`with_tasks`](Self::with_tasks). [`Error::PolicyText`] for a label that no page could
    /// show, that another policy has at the same budget, or without a budget;
    /// [`Error::PolicyVersion`]; errors of [`Policy::check`](briquette::Policy::check).
    pub fn with_policies(
        file: &RunFile,
        policies: &[OwnPolicy],
        tasks: Vec<Planned>,
        other_weights: bool,
    ) -> Result<Self> {
        let tasks: Vec<Planned> = file.planned().into_iter().chain(tasks).collect();
        if tasks.is_empty() {
            return Err(file.error("there is no task: add one, as [[tasks.needle]]".into()));
        }
        let labels: Vec<&str> = tasks.iter().map(|task| task.label.as_str()).collect();
        if let Some(label) = twice(&labels) {
            return Err(file.error(format!("two tasks have the label `{label}`")));
        }
        let candidates = file.candidates(policies)?;
        let started = candidates.iter().find(|candidate| candidate.prefix.is_some());
        let other = tasks.iter().find(|task| !matches!(task.work, Work::Ask { .. }));
        if let (Some(started), Some(task)) = (started, other) {
            let reason = format!("it starts from a prefix, and `{}` from a text", task.label);
            return Err(Error::PolicyText { text: started.label.clone(), reason });
        }
        let stream = tasks.iter().find(
            |task| matches!(&task.work, Work::Text(text) if text.protocol == Protocol::Stream),
        );
        let needs_prompt = |candidate: &Candidate| match (candidate.held, &candidate.policy) {
            (Some(_), _) => Some(format!("it is to hold {} behind a prompt", candidate.budget)),
            (None, Ok(policy)) if policy.second_pass().is_some() => {
                Some("it reads a prompt a second time".to_owned())
            }
            _ => None,
        };
        let found = candidates.iter().find_map(|one| Some((one, needs_prompt(one)?)));
        if let (Some((one, needs)), Some(task)) = (found, stream) {
            let reason = format!("{needs}, and `{}` has none", task.label);
            return Err(Error::PolicyText { text: one.label.clone(), reason });
        }
        let mut skipped = Vec::new();
        let models = file
            .models
            .iter()
            .map(|model| {
                let model = model.open(other_weights)?;
                warnings::add(model.ignored_template(&tasks)?);
                ModelPlan::new(model, &candidates, &tasks, &file.seeds, &mut skipped)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { name: file.name.clone(), models, tasks, skipped })
    }

    /// Header of its results.
    pub fn header(&self, device: &str) -> Header {
        let models: BTreeMap<String, ModelHeader> = self
            .models
            .iter()
            .map(|one| (one.opened.label.clone(), one.opened.header.clone()))
            .collect();
        Header::new(self.name.clone(), device, models)
    }

    /// All units.
    pub fn units(&self) -> impl Iterator<Item = &Unit> {
        self.models.iter().flat_map(|model| &model.units)
    }

    /// Policies that cannot hold on a model, with the reasons.
    pub fn unavailable(&self) -> impl Iterator<Item = (&Key, &str)> {
        let models = self.models.iter().flat_map(|model| &model.unavailable);
        models.map(|(key, reason)| (key, reason.as_str()))
    }

    /// Units and tokens by model, task and policy, in the order they run. `here` says which units
    /// are of this shard, `done` which have results.
    pub fn shares(&self, here: impl Fn(&Key) -> bool, done: impl Fn(&Key) -> bool) -> Vec<Share> {
        let mut shares: Vec<Share> = Vec::new();
        let mut places: BTreeMap<(&str, &str, &str, &str), usize> = BTreeMap::new();
        for unit in self.units().filter(|unit| here(&unit.key)) {
            let Key { model, task, policy, budget, .. } = &unit.key;
            let place = *places.entry((model, task, policy, budget)).or_insert_with(|| {
                shares.push(Share {
                    model: model.clone(),
                    task: task.clone(),
                    policy: policy.clone(),
                    budget: budget.clone(),
                    units: 0,
                    left: 0,
                    tokens: 0,
                });
                shares.len() - 1
            });
            let share = &mut shares[place];
            share.units += 1;
            if !done(&unit.key) {
                share.left += 1;
                share.tokens += unit.tokens;
            }
        }
        shares
    }
}

#[derive(Debug)]
pub(super) struct Lengths<'a> {
    plan: &'a ModelPlan,
    /// Tasks with samples of several lengths.
    several: BTreeSet<usize>,
}

impl Lengths<'_> {
    /// The tokens of a sample, if its task has samples of several lengths.
    pub(super) fn of(&self, unit: &Unit) -> Option<u64> {
        let has_several = self.several.contains(&self.plan.groups[unit.group].task);
        self.plan.sample(unit).filter(|_| has_several)?.axes.get("length").copied()
    }
}

impl ModelPlan {
    /// The sample of a unit; `None` for a window of a text.
    pub(super) fn sample(&self, unit: &Unit) -> Option<&Sample> {
        match &self.groups[unit.group].data {
            TaskData::Samples(samples) => Some(&samples[unit.sample]),
            TaskData::Windows(_) => None,
        }
    }

    /// The lengths that the samples were made for.
    pub(super) fn lengths(&self) -> Lengths<'_> {
        let mut found: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
        for group in &self.groups {
            if let TaskData::Samples(samples) = &group.data {
                let lengths = samples.iter().filter_map(|sample| sample.axes.get("length"));
                found.entry(group.task).or_default().extend(lengths);
            }
        }
        let several = found.into_iter().filter(|(_, lengths)| lengths.len() > 1);
        Lengths { plan: self, several: several.map(|(task, _)| task).collect() }
    }

    fn new(
        opened: OpenModel,
        candidates: &[Candidate],
        tasks: &[Planned],
        seeds: &[u64],
        skipped: &mut Vec<String>,
    ) -> Result<Self> {
        let (entries, unavailable) = available(&opened, candidates, seeds)?;
        let mut groups = Vec::new();
        let mut units = Vec::new();
        // A sample that another seed does not change runs once.
        let mut known = BTreeSet::new();
        for (number, task) in tasks.iter().enumerate() {
            // Windows of a text are the same under every seed.
            let draws = matches!(task.work, Work::Ask { .. });
            for &seed in if draws { seeds } else { seeds.get(..1).unwrap_or_default() } {
                let data = task_data(&opened, task, seed, skipped)?;
                let specs = sample_specs(&opened, task, &data)?;
                let before = units.len();
                for (sample, spec) in specs.into_iter().enumerate() {
                    if !known.insert((number, spec.id.clone(), spec.fingerprint.clone())) {
                        continue;
                    }
                    for (entry, planned) in entries.iter().enumerate() {
                        for ask in &spec.asks {
                            let key = Key {
                                model: opened.label.clone(),
                                policy: planned.entry.label.clone(),
                                budget: planned.budget.clone(),
                                seed,
                                task: task.label.clone(),
                                sample: spec.id.clone(),
                                ask: *ask,
                            };
                            let fingerprint =
                                format!("{}-{}", planned.fingerprint, spec.fingerprint);
                            let (tokens, group) = (spec.tokens, groups.len());
                            units.push(Unit { key, fingerprint, tokens, entry, group, sample });
                        }
                    }
                }
                if units.len() > before {
                    groups.push(Group { task: number, data });
                }
            }
        }
        Ok(Self { opened, entries, unavailable, groups, units })
    }
}

/// The policies that can hold, and the others with their reasons.
type Available = (Vec<PlannedPolicy>, Vec<(Key, String)>);

fn available(model: &OpenModel, candidates: &[Candidate], seeds: &[u64]) -> Result<Available> {
    let (mut entries, mut unavailable) = (Vec::new(), Vec::new());
    for Candidate { label, budget, policy, held, prefix, version } in candidates {
        let policy = model.profiles.attached_or_reason(policy.clone())?.and_then(|policy| {
            let checked = policy.check_shape(model.header.shape);
            checked.map(|()| policy).map_err(|error| error.to_string())
        });
        match policy {
            Ok(policy) => {
                let mut fingerprint = fingerprint::of_policy(&policy);
                let mut add = |bytes: &[u8]| {
                    fingerprint = fingerprint::of(&[fingerprint.as_bytes(), bytes].concat());
                };
                if let Some(path) = prefix {
                    add(&files::read(path)?);
                }
                if let Some(version) = version {
                    add(version.as_bytes());
                }
                if held.is_some() {
                    add(budget.as_bytes());
                }
                entries.push(PlannedPolicy {
                    entry: NamedPolicy { label: label.clone(), policy },
                    budget: budget.clone(),
                    fingerprint,
                    held: *held,
                    prefix: prefix.clone(),
                });
            }
            Err(reason) => {
                let key = no_sample(&model.label, label, budget, seeds.first().copied());
                unavailable.push((key, reason));
            }
        }
    }
    Ok((entries, unavailable))
}

/// The key of a policy as such, with an empty task and sample.
pub(super) fn no_sample(model: &str, policy: &str, budget: &str, seed: Option<u64>) -> Key {
    Key {
        model: model.into(),
        policy: policy.into(),
        budget: budget.into(),
        seed: seed.unwrap_or(0),
        task: String::new(),
        sample: String::new(),
        ask: None,
    }
}

fn task_data(
    model: &OpenModel,
    task: &Planned,
    seed: u64,
    skipped: &mut Vec<String>,
) -> Result<TaskData> {
    let context = model.config.max_position_embeddings;
    Ok(match &task.work {
        Work::Ask { task: maker, .. } => {
            // Samples of lengths that no model has would be made for hours before they are refused.
            if let Some(tokens) = maker.longest().filter(|tokens| *tokens > context) {
                return Err(too_long(model, task, format!("length={tokens}"), tokens));
            }
            let mut loaded = maker.load(&model.tokenizer, seed)?;
            if let Some(form) = &model.chat {
                loaded.samples.iter_mut().for_each(|sample| form.around(sample));
            }
            for text in loaded.skipped {
                let text = format!("{}: {text}", task.label);
                // Every seed and model leaves out the same.
                if !skipped.contains(&text) {
                    skipped.push(text);
                }
            }
            TaskData::Samples(loaded.samples)
        }
        Work::Text(text) => TaskData::Windows(text.windows(&model.tokenizer, context)?),
        Work::Fidelity(text) => TaskData::Windows(text.windows(&model.tokenizer, context)?),
    })
}

fn too_long(model: &OpenModel, task: &Planned, sample: String, tokens: usize) -> Error {
    let context = model.config.max_position_embeddings;
    let (task, model) = (task.label.clone(), model.label.clone());
    Error::SampleTooLong { task, sample, tokens, model, context }
}

/// A sample of any kind, as a plan sees it.
struct SampleSpec {
    id: String,
    fingerprint: String,
    tokens: usize,
    asks: Vec<Option<Question>>,
}

fn sample_specs(model: &OpenModel, task: &Planned, data: &TaskData) -> Result<Vec<SampleSpec>> {
    let specs: Vec<SampleSpec> = match (&task.work, data) {
        (Work::Ask { ask, .. }, TaskData::Samples(samples)) => {
            let context = model.config.max_position_embeddings;
            if let Some(sample) = samples.iter().find(|sample| sample.tokens() > context) {
                return Err(too_long(model, task, sample.id.clone(), sample.tokens()));
            }
            let mut asks: Vec<Option<Question>> = ask.iter().copied().map(Some).collect();
            asks.sort();
            asks.dedup();
            samples.iter().map(|sample| SampleSpec::of_sample(sample, &asks)).collect()
        }
        (work, TaskData::Windows(windows)) => {
            let settings = match work {
                Work::Text(text) => text.settings(),
                Work::Fidelity(text) => text.settings(),
                Work::Ask { .. } => String::new(),
            };
            windows.iter().map(|window| SampleSpec::of_window(window, &settings)).collect()
        }
        (_, TaskData::Samples(_)) => Vec::new(),
    };
    let mut ids = BTreeSet::new();
    match specs.iter().find(|spec| !ids.insert(&spec.id)) {
        Some(spec) => Err(Error::SampleTwice { task: task.label.clone(), sample: spec.id.clone() }),
        None => Ok(specs),
    }
}

impl SampleSpec {
    fn of_sample(sample: &Sample, asks: &[Option<Question>]) -> Self {
        let questions = sample.turns.iter().map(|turn| turn.question.len());
        Self {
            id: sample.id.clone(),
            fingerprint: fingerprint_of(sample, |turn| turn.metrics.first()),
            tokens: sample.context.len() + questions.sum::<usize>(),
            asks: asks.to_vec(),
        }
    }

    fn of_window(window: &Window, settings: &str) -> Self {
        let mut bytes = bytes(&window.tokens);
        bytes.extend(settings.bytes());
        Self {
            id: format!("start={}", window.start),
            fingerprint: fingerprint::of(&bytes),
            tokens: window.tokens.len(),
            asks: vec![None],
        }
    }
}

/// The fingerprint of a sample whose score is by this metric of each turn. Metrics beside the score
/// are not a part of it.
pub(super) fn fingerprint_of(sample: &Sample, score: impl Fn(&Turn) -> Metric) -> String {
    let mut bytes = bytes(&sample.context);
    for turn in &sample.turns {
        bytes.extend(self::bytes(&turn.question));
        bytes.extend(self::bytes(turn.tokens.as_deref().unwrap_or_default()));
        let rest = serde_json::json!([
            turn.references,
            turn.classes,
            score(turn),
            turn.tokens.is_some(),
            turn.max_new_tokens,
            turn.stop,
        ]);
        bytes.extend(rest.to_string().into_bytes());
    }
    fingerprint::of(&bytes)
}

/// Tokens behind their number, so that no two lists run into each other.
fn bytes(tokens: &[u32]) -> Vec<u8> {
    let count = (tokens.len() as u64).to_le_bytes();
    count.into_iter().chain(tokens.iter().flat_map(|token| token.to_le_bytes())).collect()
}
