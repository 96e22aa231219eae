//! Limits of chat templates. They come with models, and are programs: one that is wrong, or meant
//! to be, ends with an error and not with the memory.

use std::thread;

use minijinja::{Environment, Error, ErrorKind, State, Value, filters, value::Rest};

/// Bytes of a template. Those of models have a few thousand.
const LONGEST: usize = 128 << 10;
/// A stack for expressions as deep as a template is long.
const STACK: usize = 512 << 20;
/// Steps of a rendering: a message takes some tens.
const STEPS: u64 = 10_000_000;
/// Bytes of a text that is joined.
const JOINED: usize = 16 << 20;
/// Parts that a list is cut into.
const PARTS: usize = 10_000;
/// Digits of a width in a format.
const DIGITS: usize = 3;

/// The filter of minijinja behind [`join`].
const JOIN: &str = "join without limit";
/// The filter of minijinja behind [`format`].
const FORMAT: &str = "format without limit";
/// The filter of minijinja behind [`batch`].
const BATCH: &str = "batch without limit";
/// The filter of minijinja behind [`slice`].
const SLICE: &str = "slice without limit";

/// Limits the renderings of an environment.
pub(crate) fn set(environment: &mut Environment<'static>) {
    environment.set_fuel(Some(STEPS));
    environment.add_filter(JOIN, filters::join);
    environment.add_filter(FORMAT, filters::format);
    environment.add_filter(BATCH, filters::batch);
    environment.add_filter(SLICE, filters::slice);
    environment.add_filter("join", join);
    environment.add_filter("format", format);
    environment.add_filter("batch", batch);
    environment.add_filter("slice", slice);
}

/// Adds a template, parsed with a stack of its own.
pub(crate) fn add(
    environment: &mut Environment<'static>,
    name: &'static str,
    template: String,
) -> Result<(), Error> {
    if template.len() > LONGEST {
        return Err(refused(format!(
            "the template has {} bytes, at most {LONGEST} are taken",
            template.len()
        )));
    }
    thread::scope(|scope| {
        let parse = || environment.add_template_owned(name, template);
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, parse);
        let thread = thread.map_err(|error| refused(format!("no thread to parse it: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(refused("the template cannot be parsed".to_owned())))
    })
}

fn refused(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// Calls the filter of minijinja.
fn call(state: &mut State, name: &str, value: Value, rest: Rest<Value>) -> Result<Value, Error> {
    let args: Vec<Value> = std::iter::once(value).chain(rest.0).collect();
    state.apply_filter(name, &args)
}

fn join(state: &mut State, value: Value, rest: Rest<Value>) -> Result<Value, Error> {
    let length = |value: &Value| value.as_str().map_or(0, str::len);
    let between = rest.iter().map(length).max().unwrap_or(0);
    let items = value.try_iter().into_iter().flatten();
    let bytes =
        items.fold(0_usize, |sum, item| sum.saturating_add(length(&item)).saturating_add(between));
    if bytes > JOINED {
        return Err(refused(format!("join makes {bytes} bytes, at most {JOINED} are taken")));
    }
    call(state, JOIN, value, rest)
}

fn format(state: &mut State, value: Value, rest: Rest<Value>) -> Result<Value, Error> {
    let text = value.as_str().unwrap_or_default();
    let runs = text.split(|char: char| !char.is_ascii_digit());
    // A star takes the width from the arguments.
    if text.contains('*') || runs.map(str::len).max().unwrap_or(0) > DIGITS {
        return Err(refused(format!("a width in format has at most {DIGITS} digits")));
    }
    call(state, FORMAT, value, rest)
}

fn batch(state: &mut State, value: Value, rest: Rest<Value>) -> Result<Value, Error> {
    parts("batch", &rest)?;
    call(state, BATCH, value, rest)
}

fn slice(state: &mut State, value: Value, rest: Rest<Value>) -> Result<Value, Error> {
    parts("slice", &rest)?;
    call(state, SLICE, value, rest)
}

fn parts(filter: &str, rest: &[Value]) -> Result<(), Error> {
    match rest.first().and_then(Value::as_usize) {
        Some(count) if count > PARTS => {
            Err(refused(format!("{filter} into {count}, at most {PARTS} are taken")))
        }
        _ => Ok(()),
    }
}
