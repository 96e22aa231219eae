use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use briquette::{Budget, KvCache, Prefix, ops::Fallback};
use briquette_models::{DeviceMap, Interrupt, Model, prefill, prefill_shared_timed};

use super::{
    ask::{Prefilled, Session, Start, first_prompts},
    batch::{Batch, BatchLimit, Round, batches, rounds},
    fitted::{Fitted, FittedBudget},
    line::Line,
    pace::Pace,
    plan::{ModelPlan, Plan, PlannedPolicy, TaskData, Unit, no_sample},
    results::Results,
    shard::Shard,
    shared::Shared,
    tasks::{Planned, Work},
};
use crate::{
    Error, Result, date,
    fidelity::{Reference, token_texts},
    jobs::{self, Found},
    prefix,
    record::{Key, Outcome, Record},
    tasks::Sample,
};

/// How a plan is run.
#[derive(Clone, Debug)]
pub struct Runner {
    /// The device.
    pub devices: DeviceMap,
    /// Batches that run at a time.
    pub threads: usize,
    /// Samples of about one length that are rows of a batch.
    pub batch: BatchLimit,
    /// Policies at most that share the prefill of a batch, where their attention to a prompt is the
    /// same; their caches are held together until each has answered. 1 shares none.
    pub policies: usize,
    /// The part that is run; `None` runs all.
    pub shard: Option<Shard>,
    /// Whether a unit that fails is noted and the others go on.
    pub keep_going: bool,
    /// Stops the run between tokens when it is set. Units that have ended keep their results.
    pub interrupt: Interrupt,
}

impl Runner {
    /// Runs everything on this device, a sample and a policy at a time, and ends with the first
    /// failure.
    pub fn new(devices: impl Into<DeviceMap>) -> Self {
        Self {
            devices: devices.into(),
            threads: 1,
            batch: BatchLimit::Rows(1),
            policies: 1,
            shard: None,
            keep_going: false,
            interrupt: Interrupt::new(),
        }
    }
}

/// A unit that failed.
#[derive(Debug)]
pub struct Failure {
    /// The unit that failed.
    pub key: Key,
    /// The error it failed with.
    pub error: Error,
}

/// A batch that failed, and was measured in halves, and halves of these where one failed too; or
/// the prefill of several policies that failed, and was done for each by itself.
#[derive(Debug)]
pub struct Split {
    /// The first of its units.
    pub key: Key,
    /// Samples it had.
    pub rows: usize,
    /// Policies that shared the prefill that failed, more than one; else 1.
    pub policies: usize,
    /// Samples of the largest part that did not fail; 0 if each of them fails alone.
    pub fits: usize,
    /// Why it failed.
    pub error: Error,
}

/// Failures, fallbacks and found budgets of a run.
#[derive(Debug, Default)]
pub struct Executed {
    /// Budgets that were found for a share of the bytes.
    pub budgets: Vec<FittedBudget>,
    /// Units that failed, with [`Runner::keep_going`].
    pub failures: Vec<Failure>,
    /// Batches that failed, and were measured in parts.
    pub split: Vec<Split>,
    /// How often tensor operations answered for a kernel, by the label of the model.
    pub fallbacks: Vec<(String, Vec<Fallback>)>,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress<'a> {
    /// Units that have results.
    pub done: usize,
    /// Units of this shard.
    pub all: usize,
    /// Tokens that those done gave to the model, without answers: what time goes with.
    pub tokens_done: usize,
    /// Tokens of all.
    pub tokens: usize,
    /// The last that was done; `None` at the start.
    pub record: Option<&'a Record>,
    /// Time until the units of this model are done, once one is.
    pub left: Option<Duration>,
}

/// Runs what the results do not hold yet, and adds each unit to them as it ends. `on_unit` hears
/// first of those that are there.
///
/// # Errors
/// [`Error::UnitChanged`] before anything runs, [`Error::JournalGone`], [`Error::Write`],
/// [`Error::Model`] for weights that cannot be read, and [`Error::Unit`] for the first unit that
/// fails without [`Runner::keep_going`], or is interrupted.
pub fn execute(
    plan: &Plan,
    results: &mut Results,
    runner: &Runner,
    mut on_unit: impl FnMut(Progress<'_>),
) -> Result<Executed> {
    let here = |key: &Key| runner.shard.is_none_or(|shard| shard.holds(key));
    let mut so_far =
        Progress { done: 0, all: 0, tokens_done: 0, tokens: 0, record: None, left: None };
    for unit in plan.units().filter(|unit| here(&unit.key)) {
        results.check(unit)?;
        so_far.all += 1;
        so_far.tokens += unit.tokens;
        if results.contains(&unit.key) {
            so_far.done += 1;
            so_far.tokens_done += unit.tokens;
        }
    }
    on_unit(so_far);
    let mut executed = Executed::default();
    for model_plan in &plan.models {
        for (key, reason) in &model_plan.unavailable {
            note_unavailable(results, key.clone(), reason)?;
        }
        let left = |results: &Results, unit: &Unit| here(&unit.key) && !results.contains(&unit.key);
        if model_plan.units.iter().any(|unit| left(results, unit)) {
            let model = model_plan.opened.load(&runner.devices)?;
            let model = model.with_interrupt(runner.interrupt.clone());
            let units = model_plan.units.iter().filter(|unit| left(results, unit));
            let Prepared { mut fitted, refused } =
                Prepared::new(model_plan, &model, &plan.tasks, units)?;
            executed.budgets.append(&mut fitted.found);
            for (entry, reason) in &refused {
                let PlannedPolicy { entry, budget, .. } = &model_plan.entries[*entry];
                let seed = model_plan.units.first().map(|unit| unit.key.seed);
                let key = no_sample(&model_plan.opened.label, &entry.label, budget, seed);
                note_unavailable(results, key, reason)?;
            }
            let can = |unit: &Unit| !refused.iter().any(|(entry, _)| *entry == unit.entry);
            for unit in model_plan.units.iter().filter(|unit| left(results, unit) && !can(unit)) {
                so_far.all -= 1;
                so_far.tokens -= unit.tokens;
            }
            on_unit(so_far);
            let units = model_plan.units.iter().filter(|unit| here(&unit.key) && can(unit));
            let batches = pending(model_plan, units, runner, |unit| left(results, unit));
            let rest = batches.iter().flat_map(Batch::units);
            let mut pace = Pace::new(rest.filter(|unit| left(results, unit)));
            let unit_runner = UnitRunner::new(model_plan, &model, &plan.tasks, fitted, &batches)?;
            let rounds = rounds(model_plan, batches, runner.policies);
            let measure = |round, found: &mut Found<'_, _>| unit_runner.measure_round(round, found);
            jobs::run_each(&rounds, runner.threads, measure, |(batch, measured, splits)| {
                executed.split.extend(splits);
                for (row, measured) in batch.rows.iter().zip(measured) {
                    match measured {
                        Ok(records) => {
                            for (record, unit) in records.into_iter().zip(row) {
                                if results.contains(&unit.key) {
                                    continue;
                                }
                                pace.add(unit, record.seconds);
                                let fingerprint = unit.fingerprint.clone();
                                let line = Line { record, fingerprint };
                                results.push(&line)?;
                                so_far.done += 1;
                                so_far.tokens_done += unit.tokens;
                                let (record, left) = (Some(&line.record), pace.left());
                                on_unit(Progress { record, left, ..so_far });
                            }
                        }
                        Err(error) if runner.keep_going && !error.is_interrupt() => {
                            executed.failures.push(Failure { key: row[0].key.clone(), error });
                        }
                        Err(error) => return Err(unit_error(&row[0].key, error)),
                    }
                }
                Ok(())
            })?;
            executed.fallbacks.push((model_plan.opened.label.clone(), model.fallbacks()));
        }
    }
    results.finish()?;
    Ok(executed)
}

/// Batches of units of which some are left. A batch is the same whether or not some of it has
/// results: rows of another batch would be summed in another order.
pub(super) fn pending<'a>(
    model: &ModelPlan,
    units: impl Iterator<Item = &'a Unit>,
    runner: &Runner,
    is_left: impl Fn(&Unit) -> bool,
) -> Vec<Batch<'a>> {
    let mut batches = batches(model, units, runner.batch);
    batches.retain(|batch| batch.units().any(&is_left));
    batches
}

fn unit_error(key: &Key, error: Error) -> Error {
    Error::Unit { unit: key.to_string(), source: Box::new(error) }
}

fn note_unavailable(results: &mut Results, key: Key, reason: &str) -> Result<()> {
    let known = results.unavailable().any(|(other, why)| *other == key && why == reason);
    if known {
        return Ok(());
    }
    let outcome = Outcome::Unavailable { reason: reason.into() };
    let record = Record { key, outcome, seconds: 0.0, began_seconds: None, ended_seconds: None };
    results.push(&Line { record, fingerprint: "-".into() })
}

/// The policies of a plan, tried on its model before anything is measured.
pub(super) struct Prepared {
    /// Budgets by the bytes that they hold.
    pub(super) fitted: Fitted,
    /// Entries that turn out not to hold on this model, with the reasons.
    pub(super) refused: Vec<(usize, String)>,
}

impl Prepared {
    pub(super) fn new<'a>(
        plan: &ModelPlan,
        model: &Model,
        tasks: &[Planned],
        left: impl Iterator<Item = &'a Unit>,
    ) -> Result<Self> {
        let mut refused = probe(plan, model)?;
        let can = |unit: &&Unit| !refused.iter().any(|(entry, _)| *entry == unit.entry);
        let mut fitted = Fitted::new(plan, model, tasks, left.filter(can))?;
        refused.append(&mut fitted.refused);
        Ok(Self { fitted, refused })
    }
}

/// Policies whose budget turns out too small on this model only when a prompt comes: those in
/// bytes.
fn probe(plan: &ModelPlan, model: &Model) -> Result<Vec<(usize, String)>> {
    let mut unavailable = Vec::new();
    for (number, planned) in plan.entries.iter().enumerate() {
        let policy = &planned.entry.policy;
        let tried = model.cache(policy.clone()).and_then(|mut cache| {
            if matches!(policy.budget(), Some(Budget::Bytes(_))) {
                prefill(model, &[[0_u32; 2]], &mut cache, None)?;
            }
            Ok(())
        });
        match tried {
            Ok(()) => {}
            Err(briquette_models::Error::Cache(error)) => {
                unavailable.push((number, error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(unavailable)
}

/// The records of a row, one a unit.
type Measured = Result<Vec<Record>>;

/// A batch with what came of each of its rows, and what had to be split for it.
pub(super) type Ended<'b> = (&'b Batch<'b>, Vec<Measured>, Vec<Split>);

/// Measures the units of one model, with the state that they share.
pub(super) struct UnitRunner<'a> {
    plan: &'a ModelPlan,
    model: &'a Model,
    tasks: &'a [Planned],
    /// The runs on the full cache that fidelity compares with, by group and sample.
    references: Shared<(usize, usize), Reference<'a>>,
    /// Cache that each entry begins with; `None` for an empty one.
    starts: Vec<Option<KvCache>>,
    fitted: Fitted,
}

impl<'a> UnitRunner<'a> {
    pub(super) fn new(
        plan: &'a ModelPlan,
        model: &'a Model,
        tasks: &'a [Planned],
        fitted: Fitted,
        batches: &[Batch<'_>],
    ) -> Result<Self> {
        let compared =
            |unit: &&Unit| matches!(tasks[plan.groups[unit.group].task].work, Work::Fidelity(_));
        let rows = batches.iter().flat_map(|batch| &batch.rows);
        let units = rows.filter_map(|row| row.first().copied()).filter(compared);
        let references = Shared::new(units.map(|unit| (unit.group, unit.sample)));
        let weights = &plan.opened.header.weights;
        let open = |path: &PathBuf| prefix::open(Prefix::read(path)?, model, weights);
        let starts =
            plan.entries.iter().map(|planned| planned.prefix.as_ref().map(open).transpose());
        let starts = starts.collect::<Result<_>>()?;
        Ok(Self { plan, model, tasks, references, starts, fitted })
    }

    /// Measures the batches of a round, and tells of each as it ends. A shared prefill that fails
    /// is done for each policy by itself.
    pub(super) fn measure_round<'b>(
        &self,
        round: &'b Round<'b>,
        found: &mut Found<'_, Ended<'b>>,
    ) -> Result<()> {
        let Some(first) = round.batches.first().and_then(|batch| batch.units().next()) else {
            return Ok(());
        };
        let key = &first.key;
        let began = date::since_1970().as_secs_f64();
        let mut splits = Vec::new();
        let mut starts = match self.prefill_together(round) {
            Ok(starts) => starts.into_iter(),
            Err(error) if error.is_interrupt() => return Err(unit_error(key, error)),
            Err(error) => {
                let (rows, policies) = (round.batches[0].rows.len(), round.batches.len());
                splits.push(Split { key: key.clone(), rows, policies, fits: 0, error });
                Vec::new().into_iter()
            }
        };
        for batch in &round.batches {
            let (measured, split) = self.measure(&batch.rows, starts.next(), began);
            if let (Some((error, fits)), Some(unit)) = (split, batch.units().next()) {
                let (key, rows) = (unit.key.clone(), batch.rows.len());
                splits.push(Split { key, rows, policies: 1, fits, error });
            }
            found((batch, measured, std::mem::take(&mut splits)))?;
        }
        Ok(())
    }

    /// The caches of all policies of a round behind the first prompts, none where it has one
    /// policy.
    fn prefill_together(&self, round: &Round<'_>) -> Result<Vec<Start>> {
        let policies = round.batches.len();
        let first = round.batches.first().filter(|_| policies > 1);
        let asked = first
            .and_then(|batch| Some((self.samples(&batch.rows)?, batch.units().next()?.key.ask?)));
        let Some((samples, ask)) = asked else { return Ok(Vec::new()) };
        let mut caches = Vec::new();
        for unit in round.batches.iter().filter_map(|batch| batch.units().next()) {
            let policy = self.fitted.policy(self.plan, unit);
            caches.push(self.model.cache(policy.clone())?);
        }
        let prompts = first_prompts(&samples, ask);
        let (logits, times) = prefill_shared_timed(self.model, &prompts, &mut caches)?;
        let behind = |(cache, time): (KvCache, Duration)| {
            let seconds = time.as_secs_f64();
            Start { cache, prefilled: Some(Prefilled { logits: logits.clone(), seconds }) }
        };
        Ok(caches.into_iter().zip(times).map(behind).collect())
    }

    fn samples(&self, rows: &[Vec<&Unit>]) -> Option<Vec<&'a Sample>> {
        rows.iter().filter_map(|row| row.first()).map(|unit| self.plan.sample(unit)).collect()
    }

    /// The records of each row, one a unit. Rows that fail together are measured in halves, so that
    /// those that do not fail alone have their results; the error stands beside them, with the
    /// number of rows that did not fail together.
    fn measure(
        &self,
        rows: &[Vec<&Unit>],
        start: Option<Start>,
        began: f64,
    ) -> (Vec<Measured>, Option<(Error, usize)>) {
        match self.measure_rows(rows, start, began) {
            Err(error) if rows.len() > 1 && !error.is_interrupt() => {
                let halves = rows.split_at(rows.len().div_ceil(2));
                let (mut records, mut fits) = (Vec::new(), 0);
                for half in [halves.0, halves.1] {
                    let (found, split) = self.measure(half, None, began);
                    let whole = if found.iter().all(Result::is_ok) { half.len() } else { 0 };
                    fits = fits.max(split.map_or(whole, |(_, fits)| fits));
                    records.extend(found);
                }
                (records, Some((error, fits)))
            }
            Err(error) => (vec![Err(error)], None),
            Ok(records) => (records, None),
        }
    }

    /// The records of rows that are measured at once, each with its share of the seconds.
    fn measure_rows(
        &self,
        rows: &[Vec<&Unit>],
        start: Option<Start>,
        began: f64,
    ) -> Result<Vec<Measured>> {
        let begun = Instant::now();
        // Buffers of caches that are gone slow launches down.
        self.model.clean_up();
        let prefilled = start.as_ref().and_then(|start| start.prefilled.as_ref());
        let shared = prefilled.map_or(0.0, |prefilled| prefilled.seconds);
        let (outcomes, saved) = self.outcomes(rows, start)?;
        let took = shared + saved + begun.elapsed().as_secs_f64();
        let seconds = took / rows.len() as f64;
        let records = |(row, outcome): (&Vec<&Unit>, _)| records(row, outcome, seconds, began);
        Ok(rows.iter().zip(outcomes).map(records).collect())
    }

    /// The outcome of each row, and the seconds that other policies have spent on what these share
    /// with them.
    fn outcomes(&self, rows: &[Vec<&Unit>], start: Option<Start>) -> Result<(Vec<Outcome>, f64)> {
        let units: Vec<&Unit> = rows.iter().filter_map(|row| row.first().copied()).collect();
        let Some(&unit) = units.first() else { return Ok((Vec::new(), 0.0)) };
        let mut saved = 0.0;
        let policy = self.fitted.policy(self.plan, unit);
        let group = &self.plan.groups[unit.group];
        let task = &self.tasks[group.task];
        let outcomes = match (&task.work, &group.data, unit.key.ask) {
            (Work::Ask { .. }, TaskData::Samples(samples), Some(ask)) => {
                let session = Session {
                    model: self.model,
                    tokenizer: &self.plan.opened.tokenizer,
                    chunk: self.plan.opened.spec.chunk,
                };
                let start = match (start, &self.starts[unit.entry]) {
                    (Some(start), _) => start,
                    (None, Some(prefix)) => Start::at(prefix.fork()),
                    (None, None) => Start::at(self.model.cache(policy.clone())?),
                };
                let samples: Vec<_> = units.iter().map(|unit| &samples[unit.sample]).collect();
                session.ask(start, &samples, ask)
            }
            (Work::Text(text), TaskData::Windows(windows), _) => {
                let window =
                    |unit: &&Unit| text.measure(self.model, policy, &windows[unit.sample].tokens);
                units.iter().map(window).collect()
            }
            (Work::Fidelity(task), TaskData::Windows(windows), _) => {
                let compare = |unit: &&Unit| {
                    let window = &windows[unit.sample].tokens;
                    let make = || Reference::new(self.model, window, task.prompt);
                    let (reference, seconds) =
                        self.references.take(&(unit.group, unit.sample), make)?;
                    saved += seconds;
                    let measured = reference.measure(policy.clone())?;
                    let texts = token_texts(&self.plan.opened.tokenizer, reference.prompt())?;
                    Ok(measured.outcome(texts))
                };
                units.iter().map(compare).collect()
            }
            _ => Err(Error::Setting {
                name: "tasks",
                reason: format!("`{}` has no samples of its kind", task.label),
            }),
        };
        Ok((outcomes?, saved))
    }
}

fn records(row: &[&Unit], outcome: Outcome, seconds: f64, began: f64) -> Result<Vec<Record>> {
    if let Some(what) = outcome.not_finite() {
        return Err(Error::NotFinite { what });
    }
    let ended_seconds = Some(date::since_1970().as_secs_f64());
    let record = |unit: &&Unit| Record {
        key: unit.key.clone(),
        outcome: outcome.clone(),
        seconds,
        began_seconds: Some(began),
        ended_seconds,
    };
    Ok(row.iter().map(record).collect())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path};

    use briquette_models::Tokenizer;

    use super::*;
    use crate::{
        journal::Accept,
        metrics::Metric,
        run::{RunFile, begin, read_results},
        tasks::{Question, Sample, Task, Turn},
    };

    /// Samples of 32, 33 and 34 tokens, of which some ask nothing, which no model can answer behind
    /// a compressed context.
    #[derive(Debug)]
    struct Asking {
        questions: [&'static str; 3],
    }

    impl Task for Asking {
        fn samples(&self, tokenizer: &Tokenizer, seed: u64) -> Result<Vec<Sample>> {
            let sample = |(number, question): (usize, &&str)| {
                let question = tokenizer.encode(question, false)?;
                let turn = Turn::new(question, vec!["x".into()], Metric::ExactMatch, 2);
                // The last sample is another under every seed.
                let mut context = vec![0, 20 + if number == 2 { seed as u32 } else { 0 }];
                context.resize(32 + number, 30);
                Ok(Sample {
                    id: number.to_string(),
                    axes: BTreeMap::from([("number".into(), number as u64)]),
                    context,
                    turns: vec![turn],
                })
            };
            self.questions.iter().enumerate().map(sample).collect()
        }
    }

    fn plan(questions: [&'static str; 3], ask: Vec<Question>) -> (RunFile, Plan) {
        let text = "name = \"test\"\nseeds = [1, 2]\n[[models]]\ndir = \"models/ember-7m\"\n\
                    [[policies]]\nname = \"local-window\"\nbudgets = [8, \"1KiB\"]";
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let file = RunFile::parse(text, Path::new("test.toml"), &base).unwrap();
        let task = Planned::ask("some", Asking { questions }, &ask);
        let plan = Plan::with_tasks(&file, vec![task], false).unwrap();
        (file, plan)
    }

    fn begun(dir: &Path, file: &RunFile, plan: &Plan) -> Results {
        begin(dir, file, plan, "flex", None, Accept::default()).unwrap()
    }

    fn runner(keep_going: bool) -> Runner {
        let device = briquette::device::open("flex").unwrap();
        Runner { threads: 2, keep_going, ..Runner::new(&device) }
    }

    #[test]
    fn a_unit_that_fails_ends_the_run_or_is_left_for_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let broken = || plan(["a", "", "b"], vec![Question::After]);
        let (file, first) = broken();
        let mut results = begun(dir.path(), &file, &first);
        let error = execute(&first, &mut results, &runner(false), |_| {}).unwrap_err();
        assert!(matches!(&error, Error::Unit { unit, .. } if unit.ends_with("some, 1")), "{error}");
        drop(results);

        for _ in 0..2 {
            let (file, again) = broken();
            let mut results = begun(dir.path(), &file, &again);
            let mut heard = Vec::new();
            let executed = execute(&again, &mut results, &runner(true), |progress| {
                heard.push((progress.done, progress.all));
            })
            .unwrap();
            let failed: Vec<String> = executed
                .failures
                .iter()
                .map(|one| format!("{} {}", one.key.policy, one.key.sample))
                .collect();
            assert_eq!(failed.len(), 2, "{failed:?}");
            assert!(failed.iter().all(|one| one.ends_with(" 1")), "{failed:?}");
            // Under the second seed only the last sample is another; the policy in bytes holds
            // nothing.
            assert_eq!(heard.last(), Some(&(6, 8)));
            let missing = again.units().filter(|unit| !results.contains(&unit.key)).count();
            assert_eq!(missing, 2 + 4);
        }
    }

    #[test]
    fn a_batch_that_fails_is_measured_in_parts() {
        let dir = tempfile::tempdir().unwrap();
        let (file, plan) = plan(["a", "b", ""], vec![Question::After]);
        let mut results = begun(dir.path(), &file, &plan);
        let runner = Runner { batch: BatchLimit::Rows(3), ..runner(true) };
        let executed = execute(&plan, &mut results, &runner, |_| {}).unwrap();
        let split: Vec<[usize; 2]> = executed.split.iter().map(|s| [s.rows, s.fits]).collect();
        // Of each policy: the first two of three do not fail together.
        assert_eq!(split, [[3, 2]; 2]);
        assert!(executed.failures.iter().all(|one| one.key.sample == "2"));
    }

    fn stored(results: &Results) -> Vec<Record> {
        let lines = read_results(results.path(), false).unwrap().lines;
        lines.into_iter().map(|one| one.line.record).collect()
    }

    /// The outcomes of a run in which so many policies share a prefill, and the failed ones.
    fn outcomes(policies: usize, questions: [&'static str; 3]) -> (Vec<String>, Vec<[usize; 3]>) {
        let dir = tempfile::tempdir().unwrap();
        let (file, plan) = plan(questions, vec![Question::After, Question::Before]);
        let mut results = begun(dir.path(), &file, &plan);
        let runner = Runner { batch: BatchLimit::Rows(3), policies, ..runner(true) };
        let executed = execute(&plan, &mut results, &runner, |_| {}).unwrap();
        let split = executed.split.iter().map(|s| [s.rows, s.policies, s.fits]).collect();
        let mut found = Vec::new();
        for Record { key, mut outcome, .. } in stored(&results) {
            if let Outcome::Answers { prefill_seconds, decode_seconds, .. } = &mut outcome {
                assert!(prefill_seconds.is_some());
                (*prefill_seconds, *decode_seconds) = (None, 0.0);
            }
            found.push(format!("{key:?} {outcome:?}"));
        }
        found.sort();
        (found, split)
    }

    #[test]
    fn policies_that_share_a_prefill_answer_as_alone() {
        let (alone, _) = outcomes(1, ["a", "b", "c"]);
        assert!(alone.len() > 8, "{}", alone.len());
        assert_eq!(outcomes(2, ["a", "b", "c"]), (alone.clone(), Vec::new()));
        assert_eq!(outcomes(8, ["a", "b", "c"]).0, alone);
        // A question that cannot be asked fails under each policy, whoever shared the context.
        assert_eq!(outcomes(8, ["a", "b", ""]).0, outcomes(1, ["a", "b", ""]).0);
    }

    #[test]
    fn what_keeps_everything_answers_once_for_both_questions() {
        let dir = tempfile::tempdir().unwrap();
        let (file, plan) = plan(["a", "b", "c"], vec![Question::After, Question::Before]);
        let mut results = begun(dir.path(), &file, &plan);
        execute(&plan, &mut results, &runner(false), |_| {}).unwrap();
        let mut full = stored(&results);
        full.retain(|one| one.key.policy == "full");
        // Three samples, and the last again under the second seed.
        assert_eq!(full.len(), 2 * 4);
        for pair in full.chunks(2) {
            let asks = [pair[0].key.ask, pair[1].key.ask];
            assert_eq!(asks, [Some(Question::Before), Some(Question::After)]);
            assert_eq!(pair[0].outcome, pair[1].outcome);
        }
        let reasons: Vec<&str> = results.unavailable().map(|(_, reason)| reason).collect();
        assert!(matches!(reasons[..], [reason] if reason.contains("of 1KiB")), "{reasons:?}");
    }

    #[test]
    fn the_full_cache_answers_the_first_prompts_of_a_task_before_all_others() {
        let dir = tempfile::tempdir().unwrap();
        let (file, plan) = plan(["a", "b", "c"], vec![Question::After]);
        let mut results = begun(dir.path(), &file, &plan);
        let mut heard = Vec::new();
        let runner = Runner { threads: 1, ..runner(false) };
        execute(&plan, &mut results, &runner, |progress| {
            let record = progress.record.map(|record| &record.key);
            heard.extend(record.map(|key| format!("{} {}", key.policy, key.sample)));
        })
        .unwrap();
        assert_eq!(heard[..4], ["full 0", "full 1", "local-window 0", "local-window 1"]);
        assert_eq!(heard.len(), 8);
    }
}
