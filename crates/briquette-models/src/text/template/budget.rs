use std::fmt::Display;

use minijinja::{Error, ErrorKind, State, Value, value::ValueKind};

/// Bytes of a value that any template may make.
const VALUE: usize = 16 << 20;
/// Bytes of a value for each byte of the conversation.
const VALUE_PER_BYTE: usize = 4;
/// Values of the largest size that a rendering may write in all.
const VALUES: usize = 16;
/// Bytes that an item of a list takes.
const ITEM: usize = 24;
/// Lists in lists. Those of a conversation and of tools have some ten.
const DEPTH: usize = 64;
/// The variable that holds the bytes of the conversation. No template can name it.
pub(super) const GIVEN: &str = "%given";

/// Bytes that one rendering may still write.
struct Budget {
    left: usize,
}

pub(super) fn refused(reason: impl Display) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_string())
}

/// Bytes of the largest value.
pub(super) fn largest(state: &State) -> usize {
    let given = state.lookup(GIVEN).and_then(|given| given.as_usize()).unwrap_or(0);
    given.saturating_mul(VALUE_PER_BYTE).saturating_add(VALUE)
}

/// Refuses what would be larger than a value may be, before it is made.
pub(super) fn check(state: &State, name: &str, bytes: usize) -> Result<(), Error> {
    let largest = largest(state);
    if bytes > largest {
        return Err(refused(format!("{name} makes {bytes} bytes, at most {largest} are taken")));
    }
    Ok(())
}

/// Counts a value that was made, and gives it back. What is worked out when it is looked at becomes
/// a list, so that no value stands on a long chain of others.
pub(super) fn made(state: &mut State, value: Value) -> Result<Value, Error> {
    let bytes = match value.as_str() {
        Some(text) => {
            check(state, "the template", text.len())?;
            text.len()
        }
        None if value.as_object().is_none() => return Ok(value),
        None => weigh(state, &value)?.items.saturating_mul(ITEM),
    };
    spend(state, bytes)?;
    if value.kind() == ValueKind::Iterable {
        return value.try_iter()?.checked().collect::<Result<Vec<Value>, Error>>().map(Value::from);
    }
    Ok(value)
}

/// Counts text that is written.
pub(super) fn written(state: &mut State, value: &Value) -> Result<(), Error> {
    let bytes = match value.as_str() {
        Some(text) => text.len(),
        None => weigh(state, value)?.bytes,
    };
    spend(state, bytes)
}

fn spend(state: &mut State, bytes: usize) -> Result<(), Error> {
    let whole = largest(state).saturating_mul(VALUES);
    let budget = state.get_or_insert_extension_with(|| Budget { left: whole });
    let left = budget.left.checked_sub(bytes);
    budget.left =
        left.ok_or_else(|| refused(format!("the template writes more than {whole} bytes in all")))?;
    Ok(())
}

/// Size of a value as if nothing in it were shared.
pub(super) struct Weight {
    pub(super) items: usize,
    pub(super) bytes: usize,
    most: usize,
}

/// Weighs a value, and refuses one that is too large or too deep.
pub(super) fn weigh(state: &State, value: &Value) -> Result<Weight, Error> {
    let mut weight = Weight { items: 0, bytes: 0, most: largest(state) };
    weight.add(value, 0)?;
    Ok(weight)
}

impl Weight {
    fn add(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.items = self.items.saturating_add(1);
        let length = value.as_str().map(str::len).or_else(|| value.as_bytes().map(<[u8]>::len));
        self.bytes = self.bytes.saturating_add(length.unwrap_or(0)).saturating_add(ITEM);
        let most = self.most;
        if self.bytes > most {
            return Err(refused(format!("a list has more than {most} bytes")));
        }
        if value.as_object().is_none() {
            return Ok(());
        }
        if depth > DEPTH {
            return Err(refused(format!("lists are more than {DEPTH} deep")));
        }
        if depth > 0 && is_namespace(value) {
            return Err(refused("a namespace is part of another value"));
        }
        let pairs = value.kind() == ValueKind::Map;
        if !pairs && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
            return Ok(());
        }
        for item in value.try_iter()? {
            if pairs {
                self.add(&value.get_item(&item)?, depth.saturating_add(1))?;
            }
            self.add(&item, depth.saturating_add(1))?;
        }
        Ok(())
    }
}

/// Whether it is what `namespace()` makes: the only value that changes after it was made.
pub(super) fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}
