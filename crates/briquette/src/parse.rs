//! Reading of the files that people write, with errors that say where and what.

use std::fmt::{self, Display};

use serde::de::DeserializeOwned;
use toml::{
    Spanned, Table, Value,
    de::{DeTable, DeValue},
};

use crate::nearest::did_you_mean;

/// Maximum number of letters that an error shows of a line or a value.
const SHOWN: usize = 200;

/// Maximum number of keys that are searched for the wrong one.
const SEARCHED: usize = 500;

/// Part of a file that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Line and column, from 1, where they are known.
    pub place: Option<(usize, usize)>,
    /// The defect, in words, with the path of the key.
    pub message: String,
}

impl Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some((line, column)) => write!(f, "line {line}, column {column}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Reads TOML.
///
/// # Errors
/// [`Mistake`] for the first key that is wrong.
pub fn toml<T: DeserializeOwned>(text: &str) -> Result<T, Mistake> {
    let error = match toml::from_str(text) {
        Ok(read) => return Ok(read),
        Err(error) => error,
    };
    let place_of_error = error.span().map(|span| place(text, span.start));
    let Ok(table) = toml::from_str::<Table>(text) else {
        // No TOML at all.
        let shown = place_of_error.map_or_else(String::new, |at| excerpt(text, at));
        let message = format!("{}{shown}", shortened(error.message()));
        return Err(Mistake { place: place_of_error, message });
    };
    Err(match wrong::<T>(&Value::Table(table)) {
        Some((path, message)) => {
            let is_key = message.contains("unknown field");
            let found = DeTable::parse(text).ok().and_then(|table| offset(&table, &path, is_key));
            Mistake { place: found.map(|at| place(text, at)), message }
        }
        None => Mistake { place: place_of_error, message: shortened(error.message()) },
    })
}

/// Reads JSON.
///
/// # Errors
/// [`Mistake`] for the first key that is wrong.
pub fn json<T: DeserializeOwned>(text: &str) -> Result<T, Mistake> {
    serde_json::from_str(text).map_err(|error| {
        let place = (error.line() > 0).then(|| (error.line(), error.column()));
        let whole = error.to_string();
        let bare = whole.rfind(" at line ").map_or(whole.as_str(), |end| &whole[..end]);
        let found = serde_json::from_str::<Value>(text).ok().and_then(|value| wrong::<T>(&value));
        let message = found.map_or_else(|| shortened(bare), |(_, message)| message);
        Mistake { place, message }
    })
}

/// Returns line and column, from 1, of the value whose path ends with `path`, such as
/// `pool.kernel`.
pub(crate) fn place_in_toml(text: &str, path: &str) -> Option<(usize, usize)> {
    fn find(table: &DeTable<'_>, above: &str, path: &str) -> Option<usize> {
        table.iter().find_map(|(key, value)| {
            let here = format!("{above}.{}", key.get_ref());
            match value.get_ref() {
                _ if here.ends_with(&format!(".{path}")) => Some(value.span().start),
                DeValue::Table(inner) => find(inner, &here, path),
                _ => None,
            }
        })
    }
    let table = DeTable::parse(text).ok()?;
    find(table.get_ref(), "", path).map(|at| place(text, at))
}

/// Step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// Returns the path of the wrong value, and the defect in words; `None` if nothing is wrong. A
/// value is wrong if the error changes when it is left out.
fn wrong<T: DeserializeOwned>(whole: &Value) -> Option<(Vec<Step>, String)> {
    let refusal =
        |value: Value| T::deserialize(value).err().map(|error| error.message().to_owned());
    let first = refusal(whole.clone())?;
    let missing = missing_field(&first);
    let (mut path, mut searched) = (Vec::new(), 0);
    loop {
        let here = at(whole, &path)?;
        // Of several forms there is one too many.
        if first.contains("wanted exactly 1 element")
            && here.as_table().is_some_and(|it| it.len() > 1)
            && !path.is_empty()
        {
            let only = |step: &Step| refusal(with(whole, &path, &|value| keep_only(value, step)));
            let unknown = |step: Step| {
                let message = only(&step).filter(|message| message.starts_with("unknown "))?;
                Some((step, message))
            };
            if let Some((step, message)) = steps(here).into_iter().find_map(unknown) {
                path.push(step);
                let message = words(&message, &path, at(whole, &path)?);
                return Some((path, message));
            }
            let alone = steps(here).iter().any(|step| only(step).as_ref() != Some(&first));
            if alone {
                break;
            }
        }
        // Those without which the error is another, and whether that one is that they are missing.
        let mut found: Vec<(Step, bool)> = Vec::new();
        for step in steps(here) {
            searched += 1;
            if searched > SEARCHED {
                return None;
            }
            let without = refusal(with(whole, &path, &|value| remove(value, &step)));
            if without.as_ref() != Some(&first) {
                let required = matches!((&step, &without), (Step::Key(key), Some(without)) if missing_field(without) == Some(key));
                found.push((step, required));
            }
        }
        // A field that is missing is in a table, and what stands beside it is right.
        if missing.is_some() {
            let is_table =
                |step: &Step| here_at(here, step).is_some_and(|it| it.is_table() || it.is_array());
            found.retain(|(step, _)| is_table(step));
        }
        // The kind of a stage is always missed.
        let kind = |step: &Step| matches!(step, Step::Key(key) if key == "kind");
        found.sort_by_key(|(step, required)| (*required, kind(step)));
        let Some((step, _)) = found.into_iter().next() else { break };
        path.push(step);
    }
    let message = words(&first, &path, at(whole, &path)?);
    Some((path, message))
}

/// Returns the words for a refusal by serde.
fn words(message: &str, path: &[Step], value: &Value) -> String {
    let name = shown(path);
    if let Some(field) = missing_field(message) {
        return match path {
            [] => format!("there is no `{field}`: add `{field} = …` at the top"),
            _ => format!("`{name}` has no `{field}`"),
        };
    }
    if let Some((found, expected)) =
        message.strip_prefix("invalid type: ").and_then(|rest| rest.split_once(", expected "))
    {
        let expected = match expected {
            "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" | "isize" => "a whole number",
            "f32" | "f64" => "a number",
            "a boolean" => "true or false",
            "a string" => "a text",
            "a sequence" => "a list",
            other => other,
        };
        if let (Value::Array(_), false) = (value, found == "sequence") {
            let found = found.strip_prefix("string ").unwrap_or(found);
            return format!("`{name}` holds {}, but each must be {expected}", cut(found));
        }
        let (is, what) = match value {
            Value::String(text) => (format!("\"{}\"", cut(text)), " (a text)"),
            Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => (value.to_string(), ""),
            Value::Array(_) => ("a list".to_owned(), ""),
            Value::Table(_) => ("a table".to_owned(), ""),
            Value::Datetime(_) => (found.to_owned(), ""),
        };
        return format!("`{name}` is {is}{what}, but must be {expected}");
    }
    if let (true, Value::Table(table)) = (message.contains("wanted exactly 1 element"), value) {
        let keys: Vec<String> = table.keys().map(|key| format!("`{key}`")).collect();
        return match keys.as_slice() {
            [] => format!("`{name}` is empty"),
            [one, other] => format!("`{name}` has both {one} and {other}: give one"),
            many => format!("`{name}` has {}: give one", many.join(", ")),
        };
    }
    // An unknown field is named anyway.
    let parent = match message.starts_with("unknown field") {
        true => shown(&path[..path.len().saturating_sub(1)]),
        false => name,
    };
    match parent.is_empty() {
        true => suggested(message),
        false => format!("`{parent}`: {}", suggested(message)),
    }
}

/// Returns a message with a question for the name that was probably meant before it, if the message
/// lists an unknown name and the known ones.
fn suggested(message: &str) -> String {
    let unknown = ["unknown field `", "unknown variant `"];
    let rest = unknown.iter().find_map(|begin| message.strip_prefix(begin));
    let names = rest.and_then(|rest| rest.split_once("`, expected "));
    // Those that are known are every second part.
    let near = names.map(|(name, known)| did_you_mean(name, known.split('`').skip(1).step_by(2)));
    format!("{}{}", near.unwrap_or_default(), shortened(message))
}

fn missing_field(message: &str) -> Option<&str> {
    message.strip_prefix("missing field `")?.strip_suffix('`')
}

/// Returns a path as text, such as `policies[0].budgets`; lists are counted from 0.
fn shown(path: &[Step]) -> String {
    path.iter().fold(String::new(), |all, step| match step {
        Step::Key(key) if all.is_empty() => key.clone(),
        Step::Key(key) => format!("{all}.{key}"),
        Step::Index(index) => format!("{all}[{index}]"),
    })
}

fn steps(value: &Value) -> Vec<Step> {
    match value {
        Value::Table(table) => table.keys().cloned().map(Step::Key).collect(),
        // Of lists those of tables; a list of numbers is one value.
        Value::Array(values) if values.iter().all(Value::is_table) => {
            (0..values.len()).map(Step::Index).collect()
        }
        _ => Vec::new(),
    }
}

fn here_at<'a>(value: &'a Value, step: &Step) -> Option<&'a Value> {
    match step {
        Step::Key(key) => value.get(key.as_str()),
        Step::Index(index) => value.get(*index),
    }
}

fn at<'a>(value: &'a Value, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(value, here_at)
}

/// Returns a copy of the whole with a change to the value at the path.
fn with(whole: &Value, path: &[Step], change: &dyn Fn(&mut Value)) -> Value {
    let mut whole = whole.clone();
    let place = path.iter().try_fold(&mut whole, |value, step| match step {
        Step::Key(key) => value.get_mut(key.as_str()),
        Step::Index(index) => value.get_mut(*index),
    });
    if let Some(place) = place {
        change(place);
    }
    whole
}

fn remove(value: &mut Value, step: &Step) {
    match (value, step) {
        (Value::Table(table), Step::Key(key)) => drop(table.remove(key)),
        (Value::Array(values), Step::Index(index)) => drop(values.remove(*index)),
        _ => {}
    }
}

fn keep_only(value: &mut Value, step: &Step) {
    if let (Value::Table(table), Step::Key(key)) = (value, step) {
        table.retain(|other, _| other == key);
    }
}

/// Returns where the key at the end of a path begins, or its value.
fn offset(table: &Spanned<DeTable<'_>>, path: &[Step], is_key: bool) -> Option<usize> {
    let (mut here, mut start): (Option<&DeValue<'_>>, _) = (None, None);
    for step in path {
        let inner = match here {
            None => Some(table.get_ref()),
            Some(value) => value.as_table(),
        };
        let value = match step {
            Step::Key(name) => {
                let (key, value) = inner?.iter().find(|(key, _)| key.get_ref() == name.as_str())?;
                let of_key = is_key || value.get_ref().is_table();
                start = Some(if of_key { key.span().start } else { value.span().start });
                value
            }
            Step::Index(index) => {
                let value = here?.as_array()?.get(*index)?;
                start = Some(value.span().start);
                value
            }
        };
        here = Some(value.get_ref());
    }
    start
}

/// Returns line and column of a byte, from 1.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rfind('\n').map_or(before, |end| &before[end + 1..]);
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// Returns a line, if it is not empty, cut around a column.
fn excerpt(text: &str, (line, column): (usize, usize)) -> String {
    let line = text.lines().nth(line - 1).unwrap_or_default().trim_end();
    let from = (column - 1).saturating_sub(SHOWN / 2);
    let part: String = line.chars().skip(from).take(SHOWN).collect();
    if part.trim().is_empty() {
        return String::new();
    }
    let begin = if from > 0 { "…" } else { "" };
    let end = if line.chars().count() > from + SHOWN { "…" } else { "" };
    format!(", in `{begin}{}{end}`", part.trim())
}

/// Returns a text, cut to its beginning if it is long.
fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns a message on one line, without its middle if it is long. It may quote a file, and may
/// end with a list of all names.
fn shortened(message: &str) -> String {
    let message = message.trim_end().replace('\n', ": ");
    let (count, whole) = (message.chars().count(), 8 * SHOWN);
    if count <= whole {
        return message;
    }
    let begin: String = message.chars().take(SHOWN).collect();
    let end: String = message.chars().skip(count - SHOWN).collect();
    format!("{begin} … {end}")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read")]
    struct File {
        name: String,
        #[serde(default)]
        seeds: Vec<u64>,
        #[serde(default)]
        stage: Option<Stage>,
        #[serde(default)]
        size: Option<Size>,
        #[serde(default)]
        items: Vec<Item>,
    }

    /// Read from a table that was buffered, without lines.
    #[derive(Debug, Deserialize)]
    #[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
    #[allow(dead_code, reason = "only read")]
    enum Stage {
        Window { window: usize, share: Option<f64> },
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    #[allow(dead_code, reason = "only read")]
    enum Size {
        Tokens(usize),
        Ratio(f64),
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read")]
    struct Item {
        count: u8,
    }

    #[test]
    fn an_error_names_the_key_its_line_and_what_it_must_be() {
        for (text, expected) in [
            ("", "there is no `name`: add `name = …` at the top"),
            ("seeds = [1]\nitems = []\n", "there is no `name`: add `name = …` at the top"),
            ("name = 3", "line 1, column 8: `name` is 3, but must be a text"),
            (
                "name = \"x\"\n[stage]\nkind = \"window\"\n\nwindow = \"32\"\n",
                "line 5, column 10: `stage.window` is \"32\" (a text), but must be a whole number",
            ),
            (
                "name = \"x\"\n[stage]\nwindow = 3\nshare = true\nkind = \"window\"\n",
                "line 4, column 9: `stage.share` is true, but must be a number",
            ),
            (
                "name = \"x\"\n[stage]\nkind = \"window\"\nwindow = 3\nwindaw = 3\n",
                "line 5, column 1: `stage`: did you mean `window`? unknown field `windaw`, expected `window` or `share`",
            ),
            (
                "name = \"x\"\n[stage]\nkind = \"window\"\n",
                "line 2, column 2: `stage` has no `window`",
            ),
            (
                "name = \"x\"\n[stage]\nkind = \"door\"\nwindow = 3\n",
                "line 3, column 8: `stage.kind`: unknown variant `door`, expected `window`",
            ),
            (
                "name = \"x\"\n[size]\ntokens = 3\nratio = 0.5\n",
                "line 2, column 2: `size` has both `ratio` and `tokens`: give one",
            ),
            (
                "name = \"x\"\n[size]\ntokens = 3\nration = 0.5\n",
                "line 4, column 10: `size.ration`: did you mean `ratio`? unknown variant `ration`, expected `tokens` or `ratio`",
            ),
            (
                "name = \"x\"\n[[items]]\ncount = 3\n[[items]]\ncount = 300\n",
                "line 5, column 9: `items[1].count`: invalid value: integer `300`, expected u8",
            ),
            ("name = \"x\"\nseeds = 5\n", "line 2, column 9: `seeds` is 5, but must be a list"),
            ("name = \"x\"\nseeds = [1,\n2 3]\n", "line 3, column 1: "),
        ] {
            let mistake = toml::<File>(text).unwrap_err().to_string();
            assert!(mistake.starts_with(expected), "{mistake}");
            assert!(expected.ends_with(": ") || mistake == expected, "{mistake}");
        }
        let json =
            json::<File>("{\"name\": \"x\", \"stage\": {\"kind\": \"window\", \"window\": \"3\"}}");
        let json = json.unwrap_err();
        assert_eq!(json.message, "`stage.window` is \"3\" (a text), but must be a whole number");
        assert_eq!(json.place.map(|(line, _)| line), Some(1));
    }

    #[test]
    fn long_lines_and_long_values_are_cut() {
        let seeds: Vec<String> = (0..20_000).map(|seed| seed.to_string()).collect();
        let seeds = seeds.join(", ");
        let long = "a".repeat(100_000);
        for text in [
            format!("name = \"x\"\nseeds = [{seeds}, x, {seeds}]\n"),
            format!("name = \"x\"\nseeds = [{seeds}, \"x\"]\n"),
            format!("name = \"x\"\nseeds = \"{long}\"\n"),
            format!("name = \"x\"\n{long} = 1\n"),
            format!("name = \"x\"\nstage = {{ kind = \"{long}\" }}\n"),
        ] {
            let mistake = toml::<File>(&text).unwrap_err();
            assert_eq!(mistake.place.map(|(line, _)| line), Some(2));
            assert!(mistake.to_string().len() < 1000, "{mistake}");
        }
        let mistake = toml::<File>(&format!("seeds = [{seeds}, x, {seeds}]\n")).unwrap_err();
        assert!(mistake.message.contains("19999, x, 0, 1"), "{mistake}");
    }
}
