//! Policies as they are written on a command line or in a run file: a name with changes, or a
//! policy file.

use std::{
    collections::BTreeSet,
    mem,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use briquette::{
    Budget, Policy,
    cache::store::{Dense, StoreBuilder},
    policy::PolicyFile,
};
use rapidfuzz::distance::levenshtein;
use toml::{Table, Value};

use crate::{Error, Result, files};

/// Large enough for anything a policy protects.
pub const AMPLE: Budget = Budget::Tokens(1 << 24);

/// A policy with its label.
#[derive(Clone, Debug)]
pub struct NamedPolicy {
    /// Label in reports: two policies may be of one method.
    pub label: String,
    /// The policy.
    pub policy: Policy,
}

impl NamedPolicy {
    /// Its budget as text, `-` for a policy that keeps everything.
    pub fn budget(&self) -> String {
        self.policy.budget().map_or_else(|| "-".into(), |budget| budget.to_string())
    }

    /// Whether nothing is ever dropped or rounded, so that it makes no difference when the question
    /// comes.
    pub fn keeps_all(&self) -> bool {
        self.policy.budget().is_none() && self.policy.store().name() == Dense {}.name()
    }

    /// A budget in bytes is for all rows of a batch together, so it says something of one prompt
    /// only when that is alone.
    pub fn rows_share_budget(&self) -> bool {
        matches!(self.policy.budget(), Some(Budget::Bytes(_)))
    }
}

/// Warnings of the policy files that were read, each once.
static WARNINGS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Reads a policy file, and keeps its warnings for [`take_warnings`].
pub(crate) fn from_file(path: &Path) -> Result<Policy> {
    let PolicyFile { policy, warnings, .. } = PolicyFile::read(path)?;
    WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).extend(warnings);
    Ok(policy)
}

/// Takes the warnings of all policy files that were read, each once.
pub fn take_warnings() -> BTreeSet<String> {
    mem::take(&mut *WARNINGS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Reads `NAME`, `NAME:key=value:…` or `FILE.toml`, `FILE.json`. The keys are those of the policy
/// file; a key that stands there once needs no path: `snapkv:kernel=15` is
/// `snapkv:score.pool.kernel=15`.
///
/// `budget` stands above the one of a file; `default` is for a name, when there is no `budget`.
pub fn read(text: &str, budget: Option<Budget>, default: Budget) -> Result<NamedPolicy> {
    if is_file(text) {
        let path = Path::new(text);
        let policy = from_file(path)?;
        let policy = match budget {
            Some(budget) => policy.with_budget(budget),
            None => policy,
        };
        policy.check()?;
        return Ok(NamedPolicy { label: files::stem(path), policy });
    }
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or_default();
    let mut policy = Policy::named(name, budget.unwrap_or(default))?;
    for change in parts {
        policy = changed(&policy, change)
            .map_err(|reason| Error::PolicyText { text: text.into(), reason })?;
    }
    Ok(NamedPolicy { label: text.into(), policy })
}

/// Whether `text` names a file, by its ending.
pub fn is_file(text: &str) -> bool {
    Path::new(text).extension().is_some_and(|ending| ending == "toml" || ending == "json")
}

/// The texts that name files, as paths.
pub fn inputs<'a>(texts: impl IntoIterator<Item = &'a String>) -> Vec<PathBuf> {
    texts.into_iter().filter(|text| is_file(text)).map(PathBuf::from).collect()
}

/// The policy with `key=value` written into its file form, and read again with all checks.
pub(crate) fn changed(policy: &Policy, change: &str) -> std::result::Result<Policy, String> {
    let (key, value) = key_and_value(change)?;
    if key == "compression_ratio" {
        let budget = change.parse::<Budget>().map_err(|error| error.to_string())?;
        return Ok(policy.clone().with_budget(budget));
    }
    let mut table = table(policy)?;
    let path: Vec<String> = match places(&table, key).as_slice() {
        [path] => path.clone(),
        _ => key.split('.').map(str::to_owned).collect(),
    };
    let Some((last, steps)) = path.split_last() else { return Err("there is no key".into()) };
    let old = table.clone();
    let mut place = &mut table;
    for step in steps {
        place = place
            .entry(step)
            .or_insert_with(|| Value::Table(Table::new()))
            .as_table_mut()
            .ok_or(format!("`{step}` in `{key}` holds no other keys"))?;
    }
    place.insert(last.clone(), value);
    Policy::from_toml(&table.to_string()).map_err(|error| {
        if key.contains('.') || !places(&old, key).is_empty() {
            return error.to_string();
        }
        let paths = all_leaves(&old);
        let near = nearest(key, paths.iter().filter_map(|path| path.last().map(String::as_str)));
        let near = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        let keys: Vec<String> = paths.iter().map(|path| path.join(".")).collect();
        let has = keys.join(", ");
        format!("policy `{}` has no `{key}`{near} (it has {has}; {error})", policy.name())
    })
}

/// The name that was probably meant: the one that fewest letters tell apart, at most a third of
/// them.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, near) = known
        .map(|known| (levenshtein::distance(name.chars(), known.chars()), known))
        .min_by_key(|(distance, _)| *distance)?;
    (3 * distance <= name.chars().count()).then_some(near)
}

/// The policy with `key=value` written to every place of its file form that has this key, or in
/// place of a stage such as `allocate`; `None` if there is none.
pub(crate) fn changed_everywhere(
    policy: &Policy,
    change: &str,
) -> std::result::Result<Option<Policy>, String> {
    let (key, _) = key_and_value(change)?;
    let mut paths = places(&table(policy)?, key).into_iter().map(|path| path.join("."));
    let Some(first) = paths.next() else { return Ok(None) };
    let value = &change[key.len()..];
    let first = changed(policy, &format!("{first}{value}"))?;
    paths.try_fold(first, |policy, path| changed(&policy, &format!("{path}{value}"))).map(Some)
}

fn key_and_value(change: &str) -> std::result::Result<(&str, Value), String> {
    let (key, value) = change.split_once('=').ok_or(format!("`{change}` is not key=value"))?;
    // Bare words are strings.
    let value = toml::from_str::<Table>(&format!("value = {value}"))
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| Value::String(value.to_owned()));
    Ok((key, value))
}

/// The file form.
fn table(policy: &Policy) -> std::result::Result<Table, String> {
    let file = policy.to_toml().map_err(|error| error.to_string())?;
    toml::from_str(&file).map_err(|error| error.to_string())
}

/// The paths of all keys called `name`, or of the one with this path, that hold a value; that of
/// the stage of this name if there are none.
fn places(table: &Table, name: &str) -> Vec<Vec<String>> {
    let mut paths = all_leaves(table);
    paths.retain(|path| path.last().is_some_and(|last| last == name) || path.join(".") == name);
    if paths.is_empty() && table.contains_key(name) {
        paths.push(vec![name.to_owned()]);
    }
    paths
}

/// The paths of all keys that hold a value.
fn all_leaves(table: &Table) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (key, value) in table {
        let Value::Table(inner) = value else {
            found.push(vec![key.clone()]);
            continue;
        };
        for mut path in all_leaves(inner) {
            path.insert(0, key.clone());
            found.push(path);
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
    fn a_compression_ratio_is_a_budget() {
        let entry = read("tova:compression_ratio=0.75", None, DEFAULT).unwrap();
        assert_eq!(entry.policy.budget(), Some(Budget::Ratio(0.25)));
    }

    #[test]
    fn a_name_that_is_nearly_right_is_said() {
        let methods = ["snapkv", "tova", "h2o"];
        let near = |name| nearest(name, methods.into_iter());
        assert_eq!(
            (near("snapvk"), near("Snapkv"), near("quux")),
            (Some("snapkv"), Some("snapkv"), None)
        );
        let error = read("snapkv:kernal=7", None, DEFAULT).unwrap_err().to_string();
        assert!(error.contains("did you mean `kernel`?"), "{error}");
    }

    #[test]
    fn a_stage_is_replaced_whole() {
        let policy = Policy::cam(DEFAULT);
        let evicting = changed_everywhere(&policy, "reduce={ kind = \"evict\" }").unwrap().unwrap();
        let expected = Policy::h2o(DEFAULT).with_name("cam");
        assert_eq!(evicting.to_toml().unwrap(), expected.to_toml().unwrap());
        let error = changed_everywhere(&policy, "score={ kind = \"leverage\" }").unwrap_err();
        assert!(error.contains("missing field `sketch`") && !error.contains("has no"), "{error}");
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
            // A parameter that the method does not have: the error says which it has.
            ("h2o:window=8", "score.normalize, "),
            ("h2o:score.window=8", "unknown field `window`, expected `normalize`"),
            ("tova:normalize=mean", "score.window"),
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
