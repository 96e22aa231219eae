use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::{collect::Collected, read::Source};
use crate::{record::Key, report::plural};

/// Lines of settings shown.
const SETTINGS_SHOWN: usize = 300;

/// What a run was: the head of the page.
#[derive(Debug, Serialize)]
pub(super) struct Facts {
    pub(super) title: String,
    /// Names with their values.
    facts: Vec<(&'static str, String)>,
    /// All settings, by their path.
    settings: Vec<(String, String)>,
    settings_left: usize,
    /// What a reader must know of gaps.
    warnings: Vec<String>,
}

impl Facts {
    pub(super) fn of(
        dir: &Path,
        title: Option<&str>,
        source: &Source,
        collected: &Collected,
        plan: Option<&[Key]>,
    ) -> Self {
        let mut settings = Vec::new();
        flatten("", &source.settings, &mut settings);
        let find = |names: &[&str]| {
            let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
            let mut values: Vec<&str> = settings
                .iter()
                .filter(|(path, _)| names.contains(&last(path).as_str()))
                .map(|(_, value)| value.as_str())
                .collect();
            values.sort_unstable();
            values.dedup();
            (!values.is_empty()).then(|| values.join(", "))
        };
        let name = source.settings.get("name").and_then(Value::as_str).map(str::to_owned);
        let folder = || dir.file_name().map(|name| name.to_string_lossy().into_owned());
        let title = title
            .map(str::to_owned)
            .or(name)
            .or_else(|| run_name(dir))
            .or_else(folder)
            .unwrap_or_else(|| "Run".into());

        let units: usize = collected.units.values().map(|units| units.len()).sum();
        let seeds: Vec<String> = collected.seeds.iter().map(ToString::to_string).collect();
        let (time, seconds) = match collected.wall_seconds() {
            Some(wall) => ("Wall time, s", wall),
            // Results of older versions do not say when they ended.
            None => ("Seconds, summed", collected.seconds.values().sum()),
        };
        let mut facts = vec![("Model", collected.each(|row| &row.model).join(", "))];
        for (label, names) in [
            ("Device", &["device", "device_kind"][..]),
            ("Type", &["dtype"]),
            ("Briquette", &["briquette", "briquette_version"]),
            ("Burn", &["burn", "burn_version"]),
            ("Date", &["date", "started"]),
        ] {
            facts.extend(find(names).map(|value| (label, value)));
        }
        let policies = collected.each(|row| &row.policy).len();
        facts.extend([
            ("Seed", seeds.join(", ")),
            ("Policies", policies.to_string()),
            ("Tasks", plural(collected.units.len(), "task")),
            ("Samples", plural(units, "sample")),
            ("Results", plural(collected.records, "record")),
            (time, format!("{seconds:.0}")),
        ]);
        facts.retain(|(_, value)| !value.is_empty());
        let settings_left = settings.len().saturating_sub(SETTINGS_SHOWN);
        settings.truncate(SETTINGS_SHOWN);
        Self { title, facts, settings, settings_left, warnings: warnings(source, collected, plan) }
    }
}

impl Facts {
    pub(super) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What the numbers are of, in a line: the model and what it ran with, not how much of it.
    pub(super) fn line(&self) -> String {
        let value = |name: &str| {
            let (_, value) = self.facts.iter().find(|(label, _)| *label == name)?;
            Some(match name {
                "Briquette" | "Burn" => format!("{} {value}", name.to_lowercase()),
                "Seed" => format!("seed {value}"),
                _ => value.clone(),
            })
        };
        let names = ["Model", "Type", "Device", "Briquette", "Burn", "Date", "Seed"];
        names.into_iter().filter_map(value).collect::<Vec<_>>().join(", ") + "."
    }
}

fn warnings(source: &Source, collected: &Collected, plan: Option<&[Key]>) -> Vec<String> {
    let mut warnings = Vec::new();
    for file in &source.cut {
        warnings.push(format!(
            "The last line of {file} is cut short and left out: the run was writing it."
        ));
    }
    for line in &source.damaged {
        warnings.push(format!(
            "{line}. The line is damaged and left out; `briquette run` with --repair measures it again."
        ));
    }
    if let Some(plan) = plan {
        let missing = collected.missing(plan);
        if missing > 0 {
            let units = plural(plan.len(), "unit");
            warnings
                .push(format!("{missing} of {units} of the run are missing: it has not ended."));
        }
    }
    if collected.duplicates > 0 {
        warnings.push(format!(
            "{} of a unit that was read before: left out.",
            plural(collected.duplicates, "record")
        ));
    }
    for column in collected.columns() {
        for model in collected.each(|row| &row.model) {
            let counts: Vec<usize> = collected
                .scores
                .iter()
                .filter(|(row, _)| row.model == model)
                .filter_map(|(_, tasks)| Some(tasks.get(&column)?.by_unit.len()))
                .collect();
            if let (Some(least), Some(most)) = (counts.iter().min(), counts.iter().max())
                && least < most
            {
                warnings.push(format!(
                    "{}: policies have between {least} and {most} samples, so their means are not of the same ones.",
                    column.label()
                ));
            }
        }
    }
    const SHOWN: usize = 12;
    if warnings.len() > SHOWN {
        let left = warnings.len() - SHOWN;
        warnings.truncate(SHOWN);
        warnings.push(format!("… and {left} more of this kind."));
    }
    warnings
}

/// The name in the copy of the run file, if there is one.
fn run_name(dir: &Path) -> Option<String> {
    let text = std::fs::read_to_string(dir.join("run.toml")).ok()?;
    let table: toml::Table = text.parse().ok()?;
    Some(table.get("name")?.as_str()?.to_owned())
}

fn flatten(path: &str, value: &Value, into: &mut Vec<(String, String)>) {
    let below = |name: &str| {
        if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                flatten(&below(name), value, into);
            }
        }
        Value::Array(values) if values.iter().any(|v| v.is_object() || v.is_array()) => {
            for (i, value) in values.iter().enumerate() {
                flatten(&below(&i.to_string()), value, into);
            }
        }
        Value::Array(values) => {
            let texts: Vec<String> = values.iter().map(scalar).collect();
            into.push((path.to_owned(), texts.join(", ")));
        }
        value => into.push((path.to_owned(), scalar(value))),
    }
}

fn scalar(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
