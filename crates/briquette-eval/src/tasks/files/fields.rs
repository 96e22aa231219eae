//! Records whose fields are called as their author chose: a column of a table or a key of an object
//! each.

use std::{collections::BTreeMap, path::Path};

use serde_json::Value;

use super::{
    choose::{Chosen, Draw, Source},
    published::fill,
    read::{self, Checked},
};
use crate::Result;

/// One record.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fields(BTreeMap<String, Value>);

impl Fields {
    /// The text of a field: a text as it is, a number or a truth value as it is written.
    pub(crate) fn text(&self, name: &str) -> Checked<String> {
        match self.0.get(name) {
            Some(value) => scalar(value).ok_or(format!("`{name}` is no text")),
            None => Err(self.missing(name)),
        }
    }

    /// The texts of a field: those of a list, also of one that a cell of a table holds as JSON, or
    /// the one it is.
    pub(crate) fn texts(&self, name: &str) -> Checked<Vec<String>> {
        let value = self.0.get(name).ok_or_else(|| self.missing(name))?;
        let list = match value {
            Value::Array(list) => Some(list.clone()),
            Value::String(cell) if cell.trim_start().starts_with('[') => {
                serde_json::from_str::<Vec<Value>>(cell).ok()
            }
            _ => None,
        };
        match list {
            Some(list) => {
                let texts: Option<Vec<String>> = list.iter().map(scalar).collect();
                texts.ok_or(format!("`{name}` is no list of texts"))
            }
            None => self.text(name).map(|text| vec![text]),
        }
    }

    /// Whether there is a field of this name that holds something.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// A template with every `{name}` replaced by that field.
    pub(super) fn fill(&self, template: &str) -> Checked<String> {
        let mut values = Vec::new();
        for name in names(template) {
            values.push((name, self.text(name)?));
        }
        let values: Vec<(&str, &str)> =
            values.iter().map(|(name, text)| (*name, text.as_str())).collect();
        Ok(fill(template, &values))
    }

    fn missing(&self, name: &str) -> String {
        let known: Vec<&str> = self.0.keys().map(String::as_str).collect();
        format!("no `{name}`; there are {}", known.join(", "))
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The names in braces of a template. What else stands in braces is text.
pub(super) fn names(template: &str) -> Vec<&str> {
    let inside = template.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    let is_name = |name: &&str| {
        !name.is_empty()
            && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' '))
    };
    inside.map(|(name, _)| name).filter(is_name).collect()
}

/// The cells of a table are texts, also those that look like numbers.
fn of_table(cells: BTreeMap<String, String>) -> Fields {
    Fields(cells.into_iter().map(|(name, cell)| (name, Value::String(cell))).collect())
}

/// Reads the records of a file, as [`read::records`].
pub(crate) fn records(
    path: &Path,
    mut each: impl FnMut(usize, Checked<Fields>) -> Result<()>,
) -> Result<()> {
    if read::is_table(path) {
        read::records(path, |line, record: Checked<_>| each(line, record.map(of_table)))
    } else {
        read::records(path, |line, record: Checked<_>| each(line, record.map(Fields)))
    }
}

/// Draws records of a file, as [`Source::choose`].
pub(super) fn choose<T>(
    source: &Source<'_>,
    seed: u64,
    mut add: impl FnMut(&mut Draw<T>, usize, Fields) -> Checked<()>,
) -> Result<Chosen<T>> {
    if read::is_table(source.path) {
        source.choose(seed, |draw, number, cells| add(draw, number, of_table(cells)))
    } else {
        source.choose(seed, |draw, number, fields| add(draw, number, Fields(fields)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn a_field_is_a_text_or_a_list_of_texts() {
        let fields = fields(
            r#"{"a":"x","n":7,"list":["x",2,true],"cell":" [\"a, b\", 3]","odd":"[no","none":null,"map":{}}"#,
        );
        assert_eq!(fields.text("n"), Ok("7".into()));
        assert_eq!(fields.texts("a"), Ok(vec!["x".into()]));
        assert_eq!(fields.texts("list"), Ok(vec!["x".into(), "2".into(), "true".into()]));
        assert_eq!(fields.texts("cell"), Ok(vec!["a, b".into(), "3".into()]));
        assert_eq!(fields.texts("odd"), Ok(vec!["[no".into()]));
        assert!(fields.text("map").unwrap_err().contains("`map` is no text"));
        assert!(fields.text("b").unwrap_err().contains("no `b`; there are a, cell, list"));
        assert!(fields.has("a") && !fields.has("none") && !fields.has("b"));
    }

    #[test]
    fn a_template_names_fields_in_braces() {
        let fields = fields(r#"{"context":"{question}","question":"Why?"}"#);
        let template = "{context}\n{ {\"a\": 1} }\nQ: {question}";
        assert_eq!(fields.fill(template).unwrap(), "{question}\n{ {\"a\": 1} }\nQ: Why?");
        assert!(fields.fill("{answer}").unwrap_err().contains("no `answer`"));
        assert!(names("a } b { c").is_empty());
    }

    #[test]
    fn numbers_of_a_table_stay_as_they_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.csv");
        std::fs::write(&path, "question,answers\nHow many?,007\n").unwrap();
        let mut found = Vec::new();
        records(&path, |line, fields| {
            found.push((line, fields.unwrap().texts("answers").unwrap()));
            Ok(())
        })
        .unwrap();
        assert_eq!(found, [(2, vec!["007".to_owned()])]);
    }
}
