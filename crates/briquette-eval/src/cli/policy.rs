use std::path::Path;

use briquette::{Budget, Policy};
use toml::{Table, Value};

use crate::{Error, Result, grid::Entry};

/// Reads `NAME`, `NAME:key=value:…` or `FILE.toml`, `FILE.json`. The keys are those of the policy file; a key
/// that stands there once needs no path: `snapkv:kernel=15` is `snapkv:score.pool.kernel=15`.
///
/// `budget` stands above the one of a file; `default` is for a name, when there is no `budget`.
pub(super) fn read(text: &str, budget: Option<Budget>, default: Budget) -> Result<Entry> {
    if is_file(text) {
        let path = Path::new(text);
        let policy = Policy::from_file(path)?;
        let policy = match budget {
            Some(budget) => policy.with_budget(budget),
            None => policy,
        };
        policy.check()?;
        let label = path
            .file_stem()
            .map_or_else(|| text.into(), |stem| stem.to_string_lossy().into_owned());
        return Ok(Entry { label, policy });
    }
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or_default();
    let mut policy = Policy::named(name, budget.unwrap_or(default))?;
    for change in parts {
        policy = changed(&policy, change)
            .map_err(|reason| Error::PolicyText { text: text.into(), reason })?;
    }
    Ok(Entry { label: text.into(), policy })
}

/// Whether `text` names a file, by its ending.
pub(super) fn is_file(text: &str) -> bool {
    Path::new(text).extension().is_some_and(|ending| ending == "toml" || ending == "json")
}

/// The policy with `key=value` written into its file form, and read again with all checks.
fn changed(policy: &Policy, change: &str) -> std::result::Result<Policy, String> {
    let (key, value) = change.split_once('=').ok_or(format!("`{change}` is not key=value"))?;
    // Bare words are strings.
    let value = toml::from_str::<Table>(&format!("value = {value}"))
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| Value::String(value.to_owned()));
    let mut table: Table = toml::from_str(&policy.to_toml().map_err(|error| error.to_string())?)
        .map_err(|error| error.to_string())?;
    let path: Vec<String> = match leaves(&table, key).as_slice() {
        [path] if !key.contains('.') => path.clone(),
        _ => key.split('.').map(str::to_owned).collect(),
    };
    let Some((last, steps)) = path.split_last() else { return Err("there is no key".into()) };
    let mut place = &mut table;
    for step in steps {
        place = place
            .entry(step)
            .or_insert_with(|| Value::Table(Table::new()))
            .as_table_mut()
            .ok_or(format!("`{step}` in `{key}` holds no other keys"))?;
    }
    place.insert(last.clone(), value);
    Policy::from_toml(&table.to_string()).map_err(|error| error.to_string())
}

/// The paths of all keys called `name` that hold a value.
fn leaves(table: &Table, name: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) => {
                for mut path in leaves(inner, name) {
                    path.insert(0, key.clone());
                    found.push(path);
                }
            }
            _ if key == name => found.push(vec![key.clone()]),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const DEFAULT: Budget = Budget::Tokens(256);

    #[test]
    fn names_take_the_budget_or_the_default() {
        let policy = |budget| read("h2o", budget, DEFAULT).unwrap().policy;
        assert_eq!(policy(None).budget(), Some(DEFAULT));
        assert_eq!(policy(Some(Budget::Ratio(0.5))).budget(), Some(Budget::Ratio(0.5)));
    }

    #[test]
    fn files_keep_their_budget_unless_one_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml");
        fs::write(&path, Policy::snapkv(Budget::Tokens(77)).to_toml().unwrap()).unwrap();
        let read = |budget| read(path.to_str().unwrap(), budget, DEFAULT).unwrap();
        assert_eq!(read(None).policy.budget(), Some(Budget::Tokens(77)));
        assert_eq!(read(None).label, "mine");
        assert_eq!(read(Some(DEFAULT)).policy.budget(), Some(DEFAULT));
    }

    #[test]
    fn keys_of_the_file_can_be_changed_by_name() {
        let entry = read("snapkv:score.pool.kernel=15:protect.sinks=2", None, DEFAULT).unwrap();
        assert_eq!(entry.label, "snapkv:score.pool.kernel=15:protect.sinks=2");
        let file = entry.policy.to_toml().unwrap();
        assert!(file.contains("kernel = 15") && file.contains("sinks = 2"), "{file}");
        let short = read("snapkv:kernel=15:sinks=2", None, DEFAULT).unwrap();
        assert_eq!(short.policy.to_toml().unwrap(), file);
        let max = read("snapkv:score.pool.kind=max", None, DEFAULT).unwrap();
        assert!(max.policy.to_toml().unwrap().contains("kind = \"max\""));
    }

    #[test]
    fn changes_that_make_no_sense_are_refused() {
        for (text, reason) in [
            ("nosuch", "nosuch"),
            ("snapkv:kernel", "key=value"),
            ("snapkv:kernal=15", "kernal"),
            ("snapkv:=15", "unknown field"),
            // Four stages have a kind.
            ("snapkv:kind=max", "unknown field `kind`"),
            ("snapkv:name.first=1", "name"),
            ("snapkv:score.pool.kernel=4", "kernel"),
            ("nosuch.toml", "nosuch.toml"),
        ] {
            let error = read(text, None, DEFAULT).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
