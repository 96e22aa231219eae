//! Differences of two runs, by the first lines of their results.

use std::path::Path;

use serde_json::Value;

use super::command::{check_command, written_by};
use crate::{Error, Result};

/// A setting with two values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The keys that lead to it, with points between: `models.ember.weights`.
    pub(crate) field: String,
    pub(crate) found: String,
    pub(crate) given: String,
}

/// Refuses results that were made with other settings, but for the date.
///
/// # Errors
/// [`Error::OtherCommand`] for those of another command, [`Error::OtherWeights`] where nothing but
/// the fingerprint of weights differs, unless `other_weights` are accepted, else
/// [`Error::RunSettings`].
pub(crate) fn same(path: &Path, found: &Value, given: &Value, other_weights: bool) -> Result<()> {
    if let Some(command) = written_by(given) {
        check_command(path, found, command)?;
    }
    let mut all = Vec::new();
    differences("", found, given, &mut all);
    // An older version did not name the command.
    all.retain(|one| one.field != "date" && one.field != "command");
    let (weights, settings): (Vec<Difference>, Vec<Difference>) =
        all.into_iter().partition(|one| one.field.rsplit('.').next() == Some("weights"));
    if let Some(Difference { field, found, given }) = settings.into_iter().next() {
        return Err(Error::RunSettings { path: path.into(), field, found, given });
    }
    match weights.into_iter().next() {
        Some(Difference { found, given, .. }) if !other_weights => {
            Err(Error::OtherWeights { what: path.display().to_string(), found, given })
        }
        _ => Ok(()),
    }
}

fn differences(path: &str, found: &Value, given: &Value, all: &mut Vec<Difference>) {
    let (Value::Object(a), Value::Object(b)) = (found, given) else {
        if found != given {
            all.push(Difference { field: path.into(), found: said(found), given: said(given) });
        }
        return;
    };
    let joined = |key: &str| match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    };
    for (key, value) in a {
        differences(&joined(key), value, b.get(key).unwrap_or(&Value::Null), all);
    }
    for (key, value) in b.iter().filter(|(key, _)| !a.contains_key(*key)) {
        differences(&joined(key), &Value::Null, value, all);
    }
}

/// A value in a sentence: of an object its keys.
fn said(value: &Value) -> String {
    match value {
        Value::Null => "absent".into(),
        Value::String(text) => text.clone(),
        Value::Object(fields) => fields.keys().cloned().collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_setting_is_named_with_both_values() {
        let path = Path::new("a.jsonl");
        let a = json!({ "date": 1, "n": 1, "models": { "m": { "weights": "abc", "chunk": 3 } } });
        let refused =
            |b: &Value, accept| same(path, &a, b, accept).err().map(|error| error.to_string());
        assert_eq!(refused(&a, false), None);
        let mut b = a.clone();
        b["date"] = json!(2);
        assert_eq!(refused(&b, false), None);
        b["models"]["m"]["weights"] = json!("def");
        let error = refused(&b, false).unwrap();
        assert!(
            ["a.jsonl", "abc", "def", "--other-weights"].iter().all(|part| error.contains(part))
        );
        assert_eq!(refused(&b, true), None);
        b["models"]["m"]["chunk"] = Value::Null;
        let error = refused(&b, true).unwrap();
        assert!(error.contains("its models.m.chunk is 3, here it is absent"), "{error}");
        let error = refused(&json!({ "n": 1, "models": { "k": {} } }), false).unwrap();
        assert!(error.contains("models.m"), "{error}");
    }
}
