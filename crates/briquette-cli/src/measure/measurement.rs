//! A run file measured: its results, their table, and the page.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use briquette_eval::{
    files,
    journal::Accept,
    record::Key,
    run::{
        Executed, Failure, FittedBudget, Plan, RunFile, Runner, Shard, Split, Summary, Unavailable,
        begin, execute,
    },
};
use briquette_models::DeviceMap;
use briquette_report::{html, summary};
use serde::Serialize;

use super::first_answers::FirstAnswers;
use crate::{
    args::{batch::BatchArgs, jobs::JobsArgs, model::open_devices},
    terminal::{
        interrupt,
        output::{Shown, TableArgs, bytes, note, note_each, note_fallbacks, note_warnings, plain},
        progress,
    },
};

/// A run file, and how it is measured.
pub(crate) struct Measurement<'a> {
    pub(crate) file: &'a RunFile,
    pub(crate) plan: &'a Plan,
    /// The folder of the results; `None` keeps none.
    pub(crate) out: Option<PathBuf>,
    /// Whether the folder gets a page.
    pub(crate) page: bool,
    pub(crate) device: Option<&'a str>,
    pub(crate) batch: &'a BatchArgs,
    pub(crate) jobs: &'a JobsArgs,
    pub(crate) shard: Option<Shard>,
    pub(crate) keep_going: bool,
    pub(crate) accept: Accept,
    pub(crate) tables: &'a TableArgs,
}

/// JSON that a run writes for programs.
#[derive(Serialize)]
struct Report {
    run: String,
    results: Option<String>,
    failed: Vec<String>,
    left_out: Vec<String>,
    #[serde(flatten)]
    summary: Summary,
}

impl Measurement<'_> {
    /// Runs what the results do not hold yet, and shows all of them.
    pub(crate) fn run(self) -> Result<()> {
        let (name, devices) = open_devices(self.device)?;
        let runner = self.runner(&name, devices)?;
        let kept = self.out.clone();
        let unkept = kept.is_none().then(tempfile::tempdir).transpose()?;
        let dir = kept.as_deref().or(unkept.as_ref().map(tempfile::TempDir::path));
        let dir = dir.unwrap_or_else(|| "".as_ref());
        let plan = self.plan;
        let mut results = begin(dir, self.file, plan, &name, self.shard, self.accept)?;
        for (task, count) in results.scored_anew() {
            note(&scored_anew(task, *count));
        }
        note_warnings();
        let bar = progress::units(0, runner.interrupt.clone());
        let mut first_answers = FirstAnswers::default();
        let executed = execute(plan, &mut results, &runner, |progress| {
            bar.set_length(progress.tokens as u64);
            bar.set_position(progress.tokens_done as u64);
            let count = format!("{} of {} units", progress.done, progress.all);
            let left = progress.left.map(progress::spoken);
            bar.set_prefix(left.map_or_else(|| "measuring".into(), |left| left + " to go"));
            match progress.record {
                None => {
                    let left = progress.all - progress.done;
                    if left > 0 && bar.message().is_empty() {
                        note(&self.header(&name, runner.threads, left));
                    }
                    bar.set_message(count);
                }
                Some(record) => {
                    let Key { policy, budget, task, .. } = &record.key;
                    if let Some(warning) = first_answers.add(record) {
                        bar.suspend(|| note(&warning));
                    }
                    let at_work = format!("{count}, {task}, {policy} {budget}");
                    bar.set_message(plain(&at_work).into_owned());
                }
            }
        });
        bar.finish_and_clear();
        let Executed { budgets, failures, split, fallbacks } = executed?;
        for found in budgets {
            let FittedBudget { model, policy, asked, task, prompt, budget, held } = found;
            note(&plain(&format!(
                "{model}, {policy} at {asked}: a budget of {budget} holds {:.1} % on `{task}`, {prompt} tokens",
                100.0 * held
            )));
        }
        for Split { key, rows, policies, fits, error } in split {
            let most = match fits {
                0 => "each of its samples fails alone".to_owned(),
                fits => format!("it was measured in parts, the largest of {fits} (--batch {fits})"),
            };
            let failed = failed(&Failure { key, error });
            note(&match policies {
                1 => format!("a batch of {rows} samples failed; {most}: {failed}"),
                _ => format!(
                    "a prefill of {rows} samples for {policies} policies at once failed; each had \
                     its own (--share-prefill 1): {failed}"
                ),
            });
        }
        for (model, fallbacks) in &fallbacks {
            note_fallbacks(model, fallbacks);
        }
        let report = Report {
            run: plan.name.clone(),
            results: kept.is_some().then(|| files::name(results.path())),
            failed: failures.iter().map(failed).collect(),
            left_out: plan.skipped.clone(),
            summary: Summary::new(plan, &results),
        };
        let mut shown = report.shown(&name)?;
        if let (true, Some(out)) = (self.page, &kept) {
            let written = html::write(out, None, None)?;
            note_each("warning", &written.warnings);
            writeln!(shown.behind, "a page of it all: {}", written.page.display())?;
        }
        self.tables.write(&shown, &report)?;
        if !failures.is_empty() {
            note_each("failed", &report.failed);
            bail!("{} units failed; the next run tries them again", failures.len());
        }
        Ok(())
    }

    /// How the plan is run on the devices of this name.
    pub(crate) fn runner(&self, name: &str, devices: DeviceMap) -> Result<Runner> {
        Ok(Runner {
            batch: self.batch.limit(name, &devices),
            policies: self.batch.policies(name),
            devices,
            threads: self.jobs.threads(name)?,
            shard: self.shard,
            keep_going: self.keep_going,
            interrupt: interrupt::flag(),
        })
    }

    /// A line before long work: models, device and units.
    fn header(&self, device: &str, threads: usize, units: usize) -> String {
        let models = self.file.models.iter().map(|model| {
            let size = weights_bytes(&model.dir);
            format!("{}, {}", model.label(), bytes(size))
        });
        let threads = if threads == 1 { String::new() } else { format!(", {threads} threads") };
        let models = models.collect::<Vec<_>>().join("; ");
        format!("{models}; {device}{threads}; {units} units")
    }
}

/// Bytes of the files of weights of a model. PyTorch files are read where there are no others.
fn weights_bytes(model: &Path) -> u64 {
    let entries = fs::read_dir(model).into_iter().flatten().flatten().map(|entry| entry.path());
    let files: Vec<PathBuf> = entries.chain([model.to_owned()]).collect();
    let bytes = |endings: &[&str]| {
        let is_weights = |path: &&PathBuf| {
            path.extension().is_some_and(|ending| endings.iter().any(|one| ending == *one))
        };
        let sizes = files.iter().filter(is_weights).filter_map(|path| fs::metadata(path).ok());
        sizes.filter(fs::Metadata::is_file).map(|file| file.len()).sum()
    };
    match bytes(&["safetensors", "gguf"]) {
        0 => bytes(&["bin"]),
        bytes => bytes,
    }
}

impl Report {
    /// The result for people.
    fn shown(&self, device: &str) -> Result<Shown> {
        let mut shown = tables(&self.summary)?;
        let text = &mut shown.behind;
        if !self.left_out.is_empty() {
            writeln!(text, "{} damaged samples were left out", self.left_out.len())?;
        }
        match self.summary.wall_seconds {
            Some(seconds) => write!(text, "wall time {seconds:.0} s on {device}")?,
            // Results of older versions do not say when they ended.
            None => {
                let seconds: f64 = self.summary.rows.iter().map(|row| row.seconds).sum();
                write!(text, "{seconds:.0} s, summed, on {device}")?;
            }
        }
        match &self.results {
            Some(results) => writeln!(text, "; results in {results}")?,
            None => writeln!(text)?,
        }
        Ok(shown)
    }
}

/// The tables of a run for people, behind what casts doubt on them.
pub(crate) fn tables(of: &Summary) -> Result<Shown> {
    let mut shown = Shown { tables: summary(of), ..Shown::default() };
    for warning in of.warnings() {
        writeln!(shown.before, "{warning}\n")?;
    }
    for Unavailable { model, policy, budget, reason } in &of.unavailable {
        writeln!(shown.behind, "{model}, {policy} at {budget}: {reason}")?;
    }
    Ok(shown)
}

/// A note on results whose metrics have changed.
pub(crate) fn scored_anew(task: &str, count: usize) -> String {
    format!(
        "`{task}`: {count} results are scored anew, since its metrics have changed; nothing is asked again"
    )
}

fn failed(Failure { key, error }: &Failure) -> String {
    format!("{key}: {error}")
}
