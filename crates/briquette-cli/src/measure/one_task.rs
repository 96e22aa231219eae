//! Commands that amount to a run file: one model, one or two tasks.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use briquette::Budget;
use briquette_eval::{
    files,
    policy::{self, Written},
    run::{Plan, RunFile},
};
use serde_json::{Value, json};

use crate::{
    args::{
        batch::BatchArgs, defaults, jobs::JobsArgs, model::ModelArgs, path::absolute,
        policies::PolicyArgs, profile::ProfileArgs, resume::ResumeArgs, text::TextArgs,
        windows::WindowArgs,
    },
    error::Error,
    measure::measurement::Measurement,
    terminal::{output::TableArgs, progress},
};

/// Options that all of these commands have.
#[derive(Debug, clap::Args)]
pub(crate) struct CommonArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    batch: BatchArgs,
    #[command(flatten)]
    jobs: JobsArgs,
    #[command(flatten)]
    resume: ResumeArgs,
    #[command(flatten)]
    tables: TableArgs,
}

/// A command with what it measures.
pub(crate) struct OneTask<'a> {
    /// The name of the command.
    pub(crate) command: &'static str,
    pub(crate) common: &'a CommonArgs,
    /// Whether prompts are in the chat template of the model.
    pub(crate) chat: bool,
    /// As they are written on the command line; none stands for all methods.
    pub(crate) policies: &'a [String],
    /// As they are written on the command line.
    pub(crate) budgets: &'a [Budget],
    /// Budgets of methods where none are written; a policy file has its own.
    pub(crate) default: &'a [Budget],
    pub(crate) change: &'a [String],
    /// Whether the full cache is measured though nobody names it.
    pub(crate) full: bool,
    pub(crate) seed: u64,
    /// Tasks by family, as in a run file.
    pub(crate) tasks: Value,
    pub(crate) out: Option<&'a Path>,
}

impl<'a> OneTask<'a> {
    /// These tasks under these policies and the full cache, without a chat.
    pub(crate) fn new(
        command: &'static str,
        common: &'a CommonArgs,
        policies: &'a PolicyArgs,
        tasks: Value,
        out: Option<&'a Path>,
    ) -> Self {
        Self {
            command,
            common,
            chat: false,
            policies: &policies.policies,
            budgets: &policies.budgets,
            default: &defaults::BUDGETS,
            change: &[],
            full: true,
            seed: 0,
            tasks,
            out,
        }
    }

    /// Measures it, as `briquette run` measures its run file.
    pub(crate) fn run(self) -> Result<()> {
        let CommonArgs { model, batch, jobs, resume, tables, .. } = self.common;
        let file = self.file()?;
        let results = self.out.map_or_else(Vec::new, files::results);
        let mut gate = tables.output.gate([file.inputs(), results].concat())?;
        if let Some(out) = self.out {
            files::check_dir(out)?;
            // The results of a version that had a journal for each command.
            let path = out.join(format!("{}.jsonl", self.command));
            if path.exists() {
                return Err(Error::OldJournal { path }.into());
            }
            gate.report(out, None)?;
        }
        // Behind the errors of policies and outputs.
        model.dir()?;
        let spinner = progress::spinner("making samples");
        let plan = Plan::new(&file, model.other_weights)?;
        drop(spinner);
        let measurement = Measurement {
            file: &file,
            plan: &plan,
            out: self.out.map(PathBuf::from),
            page: true,
            device: model.device(),
            batch,
            jobs,
            shard: None,
            keep_going: false,
            accept: resume.accept(model.other_weights),
            tables,
        };
        measurement.run()
    }

    /// The run file that says the same, with paths from the root on.
    fn file(&self) -> Result<RunFile> {
        let CommonArgs { model: named, profile, .. } = self.common;
        let mut model = json!({
            "dir": absolute(&named.dir_or_embedded()?)?,
            "dtype": named.dtype(),
        });
        if let Some(bits) = named.quantize {
            model["quantize"] = json!(bits);
        }
        if let Some(context) = named.context {
            model["context"] = json!(context);
        }
        if let Some(profile) = &profile.profile {
            model["profile"] = json!(absolute(profile)?);
        }
        if self.chat {
            model["chat"] = json!(true);
        }
        let texts = |budgets: &[Budget]| -> Vec<String> {
            budgets.iter().map(ToString::to_string).collect()
        };
        let budgets = if self.budgets.is_empty() { self.default } else { self.budgets };
        let mut policies = Vec::new();
        // Errors of a policy are said here in the words of the command line.
        let written = self.policies.iter().map(|text| policy::parse(text));
        let written = written.collect::<briquette_eval::Result<Vec<Written>>>()?;
        let taken = written.is_empty() || written.iter().any(Written::takes_budget);
        if let (false, [first, ..], Some(budget)) = (taken, &*written, self.budgets.first()) {
            // It says why.
            first.clone().at(*budget)?;
        }
        for (text, written) in self.policies.iter().zip(written) {
            let (origin, change) = policy::split(text);
            let takes_budget = written.takes_budget();
            policies.push(if policy::is_file(origin) {
                let budgets = if takes_budget { texts(self.budgets) } else { Vec::new() };
                if budgets.is_empty() {
                    written.checked()?;
                }
                json!({ "file": absolute(origin.as_ref())?, "change": change, "budgets": budgets })
            } else {
                json!({ "name": origin, "change": change })
            });
        }
        if policies.is_empty() {
            policies.push(json!({ "name": "all" }));
        }
        let file = json!({
            "name": self.command,
            "seeds": [self.seed],
            "budgets": if taken { texts(budgets) } else { Vec::new() },
            "change": self.change,
            "full": self.full,
            "models": [model],
            "policies": policies,
            "tasks": self.tasks,
        });
        let options = format!("the options of `briquette {}`", self.command);
        let text = toml::to_string(&file).with_context(|| format!("{options}: too large"))?;
        Ok(RunFile::parse(&text, options.as_ref(), "".as_ref())?)
    }
}

/// A task on windows of a text, as a run file has it.
pub(crate) fn text_task(text: &TextArgs, windows: &WindowArgs, tokens: usize) -> Result<Value> {
    let WindowArgs { length, samples, stride } = windows;
    let mut task = json!({ "prompt": length, "tokens": tokens, "windows": samples });
    if let Some(file) = text.absolute()? {
        task["text"] = json!(file);
    }
    if let Some(stride) = stride {
        task["stride"] = json!(stride);
    }
    Ok(task)
}
