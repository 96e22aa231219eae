//! Changes to the file form of a policy, `key=value`.

use toml::{Table, Value};

use super::Policy;
use crate::{Error as Refusal, budget::Budget, nearest::did_you_mean};

/// Result of a change, or the defect in words.
type Result<T> = std::result::Result<T, String>;

/// Returns the policy with `key=value` written into its file form, and read again with all checks.
///
/// The keys are those of the policy file; one that stands there once needs no path. A key that
/// stands in place of another, as `budget.ratio` of `budget.tokens`, replaces it.
pub(super) fn changed(policy: &Policy, change: &str) -> Result<Policy> {
    let (key, value) = key_and_value(change)?;
    let is_budget = key == "compression_ratio" || (key == "budget" && !value.is_table());
    if is_budget {
        // `budget=25%` as on the command line.
        let text = if key == "budget" { &change[key.len() + 1..] } else { change };
        let budget: Budget = text.parse().map_err(|error: Refusal| error.to_string())?;
        return Ok(policy.clone().with_budget(budget));
    }
    let table = table(policy)?;
    let path = path(policy, &table, key)?;
    let write = |alone| Ok(Policy::from_toml(&written(&table, &path, &value, alone)?.to_string()));
    write(false)?.or_else(|refusal| {
        if matches!(refusal, Refusal::PolicyFile { .. }) && path.len() > 1 {
            let alone: Result<_> = write(true);
            if let Ok(Ok(policy)) = alone {
                return Ok(policy);
            }
        }
        Err(reason(policy, &table, key, refusal))
    })
}

/// Returns the policy with `key=value` written to every place of its file form that has this key,
/// or in place of a stage such as `allocate`; `None` if there is none. A budget is another place
/// only by its path. What never compresses has no schedule to change.
pub(super) fn changed_everywhere(policy: &Policy, change: &str) -> Result<Option<Policy>> {
    let (key, _) = key_and_value(change)?;
    let mut paths = places(&with_budgets(policy, table(policy)?), key);
    if paths.len() > 1 {
        paths.retain(|path| path[0] != "budget");
    }
    let mut paths = paths.into_iter().map(|path| path.join("."));
    let Some(first) = paths.next() else { return Ok(None) };
    let value = &change[key.len()..];
    let first = changed(policy, &format!("{first}{value}"))?;
    let all = paths.try_fold(first, |policy, path| changed(&policy, &format!("{path}{value}")))?;
    Ok((all.takes_budget() == policy.takes_budget()).then_some(all))
}

fn key_and_value(change: &str) -> Result<(&str, Value)> {
    let (key, value) = change.split_once('=').ok_or(format!("`{change}` is not key=value"))?;
    // Bare words are strings.
    let value = toml::from_str::<Table>(&format!("value = {value}"))
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| Value::String(value.to_owned()));
    Ok((key, value))
}

fn table(policy: &Policy) -> Result<Table> {
    let file = policy.to_toml().map_err(|error| error.to_string())?;
    toml::from_str(&file).map_err(|error| error.to_string())
}

/// Returns the file form with every key of a budget that the policy takes.
fn with_budgets(policy: &Policy, mut table: Table) -> Table {
    if policy.takes_budget() {
        let keys = ["tokens", "ratio", "bytes"].map(|key| (key.into(), Value::Integer(1)));
        table.insert("budget".into(), Value::Table(keys.into_iter().collect()));
    }
    table
}

/// Returns the path of the one place that a key means.
fn path(policy: &Policy, table: &Table, key: &str) -> Result<Vec<String>> {
    let mut paths = places(&with_budgets(policy, table.clone()), key);
    match paths.len() {
        0 => Ok(key.split('.').map(str::to_owned).collect()),
        1 => Ok(paths.remove(0)),
        _ => {
            let named: Vec<String> = paths.iter().map(|path| path.join(".")).collect();
            let all = match named.as_slice() {
                [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
                [] => String::new(),
            };
            let stage = paths.iter().rev().find(|path| path[0] != "budget").unwrap_or(&paths[0]);
            let held = stage.iter().try_fold(table, |at, step| match at.get(step) {
                Some(Value::Table(inner)) => Ok(inner),
                value => Err(value),
            });
            let held = match held {
                Err(Some(Value::String(text))) => text.clone(),
                Err(Some(value)) => value.to_string(),
                _ => "…".into(),
            };
            let whole = stage.join(".");
            Err(format!("`{key}` is {all}: write the whole, as {whole}={held}"))
        }
    }
}

/// Returns the table with a value at this path, beside what stands there or `alone`.
fn written(table: &Table, path: &[String], value: &Value, alone: bool) -> Result<Table> {
    let Some((last, steps)) = path.split_last() else { return Err("there is no key".into()) };
    let mut table = table.clone();
    let mut place = &mut table;
    for step in steps {
        place = place
            .entry(step)
            .or_insert_with(|| Value::Table(Table::new()))
            .as_table_mut()
            .ok_or(format!("`{step}` in `{}` holds no other keys", path.join(".")))?;
    }
    if alone {
        place.clear();
    }
    place.insert(last.clone(), value.clone());
    Ok(table)
}

fn reason(policy: &Policy, table: &Table, key: &str, refusal: Refusal) -> String {
    let Refusal::PolicyFile { message, .. } = refusal else { return refusal.to_string() };
    if !message.contains(&format!("unknown field `{key}`")) {
        return message;
    }
    let paths = all_leaves(&with_budgets(policy, table.clone()));
    let near = did_you_mean(key, paths.iter().filter_map(|path| path.last().map(String::as_str)));
    let keys: Vec<String> = paths.iter().map(|path| path.join(".")).collect();
    format!("{near}there is no `{key}`, but {}", keys.join(", "))
}

/// Returns the paths of all keys called `name`, or of the one with this path, that hold a value;
/// that of the stage of this name if there are none.
fn places(table: &Table, name: &str) -> Vec<Vec<String>> {
    let mut paths = all_leaves(table);
    paths.retain(|path| path.last().is_some_and(|last| last == name) || path.join(".") == name);
    if paths.is_empty() && table.contains_key(name) {
        paths.push(vec![name.to_owned()]);
    }
    paths
}

/// Returns the paths of all keys that hold a value.
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
    use super::*;

    const BUDGET: Budget = Budget::Tokens(256);

    #[test]
    fn a_stage_is_replaced_whole() {
        let policy = Policy::cam(BUDGET);
        let evicting = changed_everywhere(&policy, "reduce={ kind = \"evict\" }").unwrap().unwrap();
        let expected = Policy::h2o(BUDGET).with_name("cam");
        assert_eq!(evicting.to_toml().unwrap(), expected.to_toml().unwrap());
        let error = changed_everywhere(&policy, "score={ kind = \"leverage\" }").unwrap_err();
        assert_eq!(error, "`score` has no `sketch`");
    }

    #[test]
    fn one_of_several_forms_takes_the_place_of_another() {
        for (policy, change, expected) in [
            (Policy::tova(BUDGET), "budget.ratio=0.5", Policy::tova(Budget::Ratio(0.5))),
            (Policy::tova(BUDGET), "ratio=0.5", Policy::tova(Budget::Ratio(0.5))),
            (Policy::tova(BUDGET), "budget=25%", Policy::tova(Budget::Ratio(0.25))),
            (Policy::tova(BUDGET), "compression_ratio=0.75", Policy::tova(Budget::Ratio(0.25))),
            (
                Policy::h2o(BUDGET),
                "protect.recent.tokens=32",
                Policy::h2o(BUDGET).with_recent(crate::policy::Recent::Tokens(32)),
            ),
        ] {
            let found = changed(&policy, change).unwrap().to_toml().unwrap();
            assert_eq!(found, expected.to_toml().unwrap(), "{change}");
        }
        // What stands beside it stays, and is refused with it.
        let error = changed(&Policy::snapkv(BUDGET), "protect.sinks=250").unwrap_err();
        assert!(error.contains("250 sinks and 32 recent"), "{error}");
    }

    #[test]
    fn a_key_of_two_places_is_named_with_both() {
        assert_eq!(
            changed(&Policy::kvzip(BUDGET), "tokens=0").unwrap_err(),
            "`tokens` is budget.tokens, protect.recent.tokens and score.tokens: write the whole, as score.tokens=2048"
        );
        let error = changed(&Policy::snapkv(BUDGET), "kind=max").unwrap_err();
        assert!(error.contains("score.kind, score.pool.kind and store.kind: write"), "{error}");
        // Everywhere means all of them, and no budget.
        let all = changed_everywhere(&Policy::kvzip(BUDGET), "tokens=77").unwrap().unwrap();
        assert_eq!(all.budget(), Some(BUDGET));
        assert!(all.to_toml().unwrap().contains("tokens = 77"));
    }

    #[test]
    fn what_never_compresses_has_no_schedule_to_change() {
        let change = "schedule.prefill=first-prompt";
        for policy in [Policy::full(), Policy::kivi(2), Policy::fp8()] {
            assert!(changed_everywhere(&policy, change).unwrap().is_none(), "{}", policy.name());
        }
        assert!(changed_everywhere(&Policy::snapkv(BUDGET), change).unwrap().is_some());
    }
}
