use std::{
    iter,
    path::{Path, PathBuf},
};

use briquette::parse;
use serde::Deserialize;

use super::{
    budget::RunBudget,
    candidate::Candidate,
    model::ModelSpec,
    own::OwnPolicy,
    policies::{self, PolicySpec},
    tasks::{Planned, Tasks, Work},
    twice::twice,
};
use crate::{Error, Result, files, steering};

/// A run file, as a user writes it: models, policies and tasks, every one with every other.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RunFile {
    /// Name of the run.
    #[serde(default)]
    pub name: String,
    /// Seeds of the samples. Tasks that draw nothing run once.
    #[serde(default = "first_seed")]
    pub seeds: Vec<u64>,
    /// Budgets of the policies that have one and say none themselves.
    #[serde(default)]
    budgets: Vec<RunBudget>,
    /// Changes, as `schedule.prefill=first-prompt`, to every policy that has the key. Labels stay.
    #[serde(default)]
    change: Vec<String>,
    /// Whether the full cache is measured too, for the others to be compared with.
    #[serde(default = "yes")]
    pub full: bool,
    /// The models.
    pub models: Vec<ModelSpec>,
    /// The policies.
    #[serde(default)]
    pub policies: Vec<PolicySpec>,
    #[serde(default)]
    tasks: Tasks,
    /// The text it was read from.
    #[serde(skip)]
    text: String,
    /// The name of it in errors.
    #[serde(skip)]
    origin: PathBuf,
    /// Folder that the paths of tasks are relative to.
    #[serde(skip)]
    base: PathBuf,
}

fn first_seed() -> Vec<u64> {
    vec![0]
}

fn yes() -> bool {
    true
}

impl RunFile {
    /// Reads a run file. Paths in it begin at its folder.
    ///
    /// # Errors
    /// [`Error::Read`], and [`Error::RunFile`] with line and column for what is not understood.
    pub fn read(path: &Path) -> Result<Self> {
        let text = files::read_text(path)?;
        let base = path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
        Self::parse(&text, path, &base)
    }

    /// Reads the text of a run file whose paths begin at `base`. `origin` is what errors call it.
    ///
    /// # Errors
    /// [`Error::RunFile`].
    pub fn parse(text: &str, origin: &Path, base: &Path) -> Result<Self> {
        let fail = |message: String| Error::RunFile { path: origin.into(), message };
        let mut file: Self = parse::toml(text).map_err(|mistake| fail(mistake.to_string()))?;
        file.text = text.to_owned();
        file.origin = origin.into();
        if file.name.is_empty() {
            return Err(fail("the run file has no `name`: add name = \"…\" at the top".into()));
        }
        if file.models.is_empty() {
            return Err(fail("there is no model: add [[models]] with its folder, `dir`".into()));
        }
        twice(&file.seeds).map_or(Ok(()), |seed| fail_twice(&fail, "seed", seed))?;
        if file.seeds.is_empty() {
            return Err(fail("`seeds` is empty: samples are made from at least one".into()));
        }
        for model in &mut file.models {
            model.resolve(base);
        }
        file.policies = policies::expanded(file.policies);
        for policy in &mut file.policies {
            policy.resolve(base);
        }
        file.base = base.into();
        file.check_names(&fail)?;
        let labels: Vec<String> = file.models.iter().map(ModelSpec::label).collect();
        twice(&labels).map_or(Ok(()), |label| fail_twice(&fail, "model", label))?;
        let labels: Vec<String> = file.planned().into_iter().map(|task| task.label).collect();
        twice(&labels).map_or(Ok(()), |label| fail_twice(&fail, "task", label))?;
        for task in file.planned() {
            if matches!(&task.work, Work::Ask { ask, .. } if ask.is_empty()) {
                let reason = "`ask` is empty: write \"before\", \"after\" or both";
                return Err(fail(format!("task `{}`: {reason}", task.label)));
            }
        }
        Ok(file)
    }

    /// Refuses names that no page could show.
    fn check_names(&self, fail: &impl Fn(String) -> Error) -> Result<()> {
        let models = self.models.iter().map(|model| ("a model", model.label()));
        // One without an origin has a reason of its own.
        let policies = self.policies.iter().filter(|policy| policy.has_origin());
        let policies = policies.map(|policy| ("a policy", policy.label()));
        let tasks = self.planned().into_iter().map(|task| ("a task", task.label));
        let run = ("the run", self.name.clone());
        for (what, name) in iter::once(run).chain(models).chain(policies).chain(tasks) {
            if let Some(fault) = steering::fault(&name) {
                let name = name.escape_debug();
                return Err(fail(format!("the name of {what} is \"{name}\": {fault}")));
            }
        }
        Ok(())
    }

    /// Every policy at every budget, behind the full cache, those of `own` last.
    pub(super) fn candidates(&self, own: &[OwnPolicy]) -> Result<Vec<Candidate>> {
        if self.policies.is_empty() && own.is_empty() && !self.full {
            return Err(self.error("there is no policy, and `full` is false".into()));
        }
        policies::candidates(&self.policies, own, &self.change, &self.budgets, self.full)
    }

    /// The tasks, with paths that begin at the folder of the file.
    pub fn planned(&self) -> Vec<Planned> {
        self.tasks.planned(&self.base)
    }

    /// Files and folders that it names and that are there.
    pub fn inputs(&self) -> Vec<PathBuf> {
        const KEYS: [&str; 7] = ["dir", "file", "form", "haystack", "prefix", "profile", "text"];
        fn texts<'a>(table: &'a toml::Table, found: &mut Vec<&'a str>) {
            for (key, value) in table {
                match value {
                    toml::Value::String(text) if KEYS.contains(&key.as_str()) => found.push(text),
                    toml::Value::Table(inner) => texts(inner, found),
                    toml::Value::Array(values) => {
                        values.iter().filter_map(|v| v.as_table()).for_each(|v| texts(v, found));
                    }
                    _ => {}
                }
            }
        }
        let table: toml::Table = toml::from_str(&self.text).unwrap_or_default();
        let mut found = Vec::new();
        texts(&table, &mut found);
        let paths = found.into_iter().map(|text| files::joined(&self.base, Path::new(text)));
        paths.filter(|path| path.exists()).collect()
    }

    /// The name of the file, without folders.
    pub(crate) fn file_name(&self) -> String {
        files::last(&self.origin)
    }

    pub(crate) fn error(&self, message: String) -> Error {
        Error::RunFile { path: self.origin.clone(), message }
    }

    /// The text it was read from.
    pub fn text(&self) -> &str {
        &self.text
    }
}

fn fail_twice(
    fail: &impl Fn(String) -> Error,
    what: &str,
    which: impl std::fmt::Display,
) -> Result<()> {
    Err(fail(format!("the {what} `{which}` is there twice; tell the two apart with `label`")))
}
