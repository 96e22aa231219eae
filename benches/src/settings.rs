//! Settings of whole generation, on a command line or by name in a file.

use std::{fs, iter::once, path::Path, str::FromStr};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use toml::{Table, Value};

/// So many prompts of one length, and the number of tokens generated after each: `8:4096+1024`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Prompts at once.
    pub batch: usize,
    /// Tokens of each.
    pub prompt: usize,
    /// Tokens generated after each.
    pub new: usize,
}

impl FromStr for Setting {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = || {
            let (batch, rest) = text.split_once(':')?;
            let (prompt, new) = rest.split_once('+')?;
            let [batch, prompt, new] = [batch, prompt, new].map(|part| part.trim().parse().ok());
            Some(Self { batch: batch?, prompt: prompt?, new: new? })
        };
        let setting: Option<Self> = parts();
        setting
            .filter(|setting| setting.batch > 0 && setting.prompt > 0 && setting.new > 0)
            .with_context(|| format!("`{text}` is not BATCH:PROMPT+NEW, as in 8:4096+1024"))
    }
}

/// A method, with its number of rows and its published ratios if they are given: `ems@16=3.44`.
#[derive(Clone, Debug, PartialEq)]
pub struct Method {
    /// Its name.
    pub name: String,
    /// Prompts at once, in place of the setting's.
    pub rows: Option<usize>,
    /// Published tokens per second over those of the full cache.
    pub published: Option<f64>,
    /// The same with both at their largest batch.
    pub published_largest: Option<f64>,
}

impl FromStr for Method {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || format!("`{text}` is not METHOD[@ROWS][=RATIO[/RATIO]]");
        let (method, ratios) = text.split_once('=').unwrap_or((text, ""));
        let (name, rows) = method.split_once('@').unwrap_or((method, ""));
        let (ratio, largest) = ratios.split_once('/').unwrap_or((ratios, ""));
        let rows = optional::<usize>(rows).with_context(wrong)?;
        ensure!(!name.is_empty() && rows != Some(0), wrong());
        Ok(Self {
            name: name.to_owned(),
            rows,
            published: optional::<f64>(ratio).with_context(wrong)?,
            published_largest: optional::<f64>(largest).with_context(wrong)?,
        })
    }
}

fn optional<T: FromStr>(text: &str) -> Result<Option<T>, T::Err> {
    (!text.is_empty()).then(|| text.parse()).transpose()
}

/// A file of settings, each with options of the program by their names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Options of all settings.
    #[serde(default)]
    all: Table,
    settings: Vec<Table>,
}

/// The settings of a file, of these names if there are any: the name of each, and the command line
/// `given` with the options of the setting that it lacks.
///
/// # Errors
/// If the file cannot be read, or has no settings of these names.
pub fn command_lines(
    file: &Path,
    only: &[String],
    given: &[String],
) -> Result<Vec<(String, Vec<String>)>> {
    let about = || file.display().to_string();
    let (program, given) = given.split_first().context("a command line has a program")?;
    let has = |key: &str| {
        let mut names = given.iter().filter_map(|option| option.strip_prefix("--"));
        names.any(|option| option.split('=').next() == Some(key))
    };
    let text = fs::read_to_string(file).with_context(about)?;
    let File { all, settings } = toml::from_str(&text).with_context(about)?;
    let mut lines = Vec::new();
    for mut setting in settings {
        let Some(Value::String(name)) = setting.remove("name") else {
            bail!("{} has settings without a name", file.display());
        };
        if !only.is_empty() && !only.contains(&name) {
            continue;
        }
        let mut options = all.clone();
        options.extend(setting);
        options.retain(|key, _| !has(key));
        let options = options.iter().filter_map(|(key, value)| option(key, value));
        let line = once(program.clone()).chain(options).chain(given.iter().cloned());
        lines.push((name, line.collect()));
    }
    ensure!(!lines.is_empty(), "{} has no settings of these names", file.display());
    Ok(lines)
}

/// An option as a command line has it; `None` if it is switched off.
fn option(key: &str, value: &Value) -> Option<String> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match value {
        Value::Boolean(on) => on.then(|| format!("--{key}")),
        Value::Array(parts) => {
            let parts: Vec<String> = parts.iter().map(text).collect();
            Some(format!("--{key}={}", parts.join(",")))
        }
        one => Some(format!("--{key}={}", text(one))),
    }
}
