use std::path::Path;

use briquette_eval::{files, record::Key, run::weak};
use serde::Serialize;
use serde_json::Value;

use super::{
    collect::{Collected, mean},
    key::FULL,
    read::Source,
};
use crate::plural;

/// Lines of settings shown.
const SETTINGS_SHOWN: usize = 300;
/// Names in a title; of more the first are named, and the rest are counted.
const NAMED: usize = 5;

/// Facts about a run: the head of the page.
#[derive(Debug, Serialize)]
pub(super) struct Facts {
    pub(super) title: String,
    /// Names with their values.
    facts: Vec<(&'static str, String)>,
    /// All settings, by their path.
    settings: Vec<(String, String)>,
    settings_left: usize,
    /// Warnings about gaps.
    warnings: Vec<String>,
    /// The same with the files it is about, for who can open them.
    #[serde(skip)]
    pub(super) warnings_by_file: Vec<String>,
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
        let models: Vec<&str> =
            collected.each(|row| &row.model).into_iter().map(plain_name).collect();
        let date = find(&["date", "started"]);
        let title = title
            .map_or_else(|| title_of(&models, collected.tasks(), date.as_deref()), str::to_owned);

        let units: usize = collected.units.values().map(|units| units.len()).sum();
        let seeds: Vec<String> = collected.seeds.iter().map(ToString::to_string).collect();
        let (time, seconds) = match collected.wall_seconds() {
            Some(wall) => ("Wall time, s", wall),
            // Results of older versions do not say when they ended.
            None => ("Seconds, summed", collected.seconds.values().sum()),
        };
        let run = name.or_else(|| run_name(dir)).unwrap_or_default();
        let mut facts = vec![("Run", run), ("Model", models.join(", "))];
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
        let gaps = [failed(collected), gaps(collected, plan)].concat();
        let all = |read: Vec<String>| -> Vec<String> {
            read.into_iter().chain(gaps.iter().cloned()).collect()
        };
        let warnings = capped(all(unread(source, false)));
        let warnings_by_file = capped(all(unread(source, true)));
        Self { title, facts, settings, settings_left, warnings, warnings_by_file }
    }

    /// One line on where the numbers come from: the model and what it ran with, not how much of it.
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

/// Endings of file names that a label may have.
const ENDINGS: [&str; 7] = [".gguf", ".jsonl", ".json", ".txt", ".csv", ".toml", ".md"];

/// A label without the folders and the ending of a file that it may be named by, for titles.
fn plain_name(label: &str) -> &str {
    let name = label.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or(label);
    ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name)
}

/// `MODEL: TASKS, DATE`
fn title_of(models: &[&str], tasks: Vec<&str>, date: Option<&str>) -> String {
    let tasks: Vec<&str> = tasks.into_iter().map(plain_name).collect();
    // Of shards begun at different times the first; of a time the day.
    let day = date.and_then(|date| date.get(..10)).unwrap_or_default();
    let of = [named(models), named(&tasks)];
    let of: Vec<String> = of.into_iter().filter(|part| !part.is_empty()).collect();
    let all = [of.join(": "), day.to_owned()];
    let all: Vec<String> = all.into_iter().filter(|part| !part.is_empty()).collect();
    if all.is_empty() { "Run".into() } else { all.join(", ") }
}

fn named(names: &[&str]) -> String {
    match names.get(..NAMED) {
        Some(first) if names.len() > NAMED => {
            format!("{} and {} more", first.join(", "), names.len() - NAMED)
        }
        _ => names.join(", "),
    }
}

/// Lines that could not be read, with the names of the files where they are wanted.
fn unread(source: &Source, by_file: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    for file in &source.cut {
        let file = if by_file { file.as_str() } else { "the results" };
        warnings.push(format!(
            "The last line of {file} is cut short and left out: the run was writing it."
        ));
    }
    const REPAIR: &str = "`briquette run` with --repair measures it again.";
    for line in source.damaged.iter().filter(|_| by_file) {
        warnings.push(format!("{line}. The line is damaged and left out; {REPAIR}"));
    }
    if !by_file && !source.damaged.is_empty() {
        let lines = plural(source.damaged.len(), "line");
        warnings.push(format!("Damaged and left out: {lines} of the results; {REPAIR}"));
    }
    warnings
}

/// Tasks that the model fails on with everything kept, a sentence each.
fn failed(collected: &Collected) -> Vec<String> {
    let full = collected.scores.iter().filter(|(row, _)| row.policy == FULL);
    let columns = full.flat_map(|(_, tasks)| tasks);
    let said = columns.filter_map(|(column, scores)| {
        let scores = &scores.by_unit;
        weak(&column.label(), mean(scores.values().copied()), scores.len())
    });
    let mut warnings: Vec<String> = said.map(|said| said.replace("WARNING: on", "On")).collect();
    warnings.dedup();
    warnings
}

/// Gaps of the results, a sentence each.
fn gaps(collected: &Collected, plan: Option<&[Key]>) -> Vec<String> {
    let mut warnings = Vec::new();
    if collected.memory.values().any(|memory| !memory.tells()) {
        warnings.push(
            "Some results are of an older version, which did not tell spare room: the bytes held include it."
                .into(),
        );
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
    warnings
}

fn capped(mut warnings: Vec<String>) -> Vec<String> {
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
    let text = files::read_text(&dir.join("run.toml")).ok()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_names_no_file() {
        assert_eq!(plain_name("/models/smol.Q8.gguf"), "smol.Q8");
        assert_eq!(plain_name("C:\\texts\\book.txt"), "book");
        assert_eq!(plain_name("models/ember-7m/"), "ember-7m");
        assert_eq!(plain_name("built-in"), "built-in");
        let title = title_of(
            &["m"],
            vec!["a", "x/b.txt", "c", "d", "e", "f", "g"],
            Some("2026-11-21T10:00:00Z"),
        );
        assert_eq!(title, "m: a, b, c, d, e and 2 more, 2026-11-21");
        assert_eq!(title_of(&["m"], vec![], None), "m");
        assert_eq!(title_of(&[], vec![], None), "Run");
    }
}
