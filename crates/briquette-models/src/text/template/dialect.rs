//! Jinja as `transformers` sets it up for chat templates.

use std::time::SystemTime;

use chrono::{
    DateTime, Local,
    format::{Item, StrftimeItems},
};
use minijinja::{
    Environment, Error, State, Value, escape_formatter,
    syntax::SyntaxConfig,
    value::{Kwargs, Rest, ValueOrKwargs},
};
use minijinja_contrib::filters;

use super::{
    budget::{is_namespace, made, refused, written},
    check::{MADE, WHOLE},
    json::to_json,
    multiply, python,
};

/// Steps of a rendering: a message takes some tens.
const STEPS: u64 = 10_000_000;

/// Blocks as `transformers` trims them.
pub(super) fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// Filters, functions and methods of chat templates. `now` is the time that `strftime_now` tells.
pub(super) fn environment(now: Option<SystemTime>) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(STEPS));
    environment.set_formatter(|out, state, value| {
        written(state, value)?;
        escape_formatter(out, state, value)
    });
    environment.set_unknown_method_callback(python::method);
    // Jinja has none of these; the last two write what grows with the depth of a value.
    for filter in ["chain", "zip", "lines", "pprint"] {
        environment.remove_filter(filter);
    }
    environment.remove_global("debug");
    environment.add_filter(MADE, |state: &mut State, value: Value| made(state, value));
    environment.add_filter(WHOLE, |value: Value| match is_namespace(&value) {
        true => Err(refused("a namespace is read and set by its attributes, and not as a whole")),
        false => Ok(value),
    });
    multiply::add(&mut environment);
    environment.add_filter("tojson", to_json);
    environment.add_filter("striptags", filters::striptags);
    environment.add_filter("truncate", truncate);
    environment.add_filter("wordcount", filters::wordcount);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(refused(message))
    });
    environment.add_function("strftime_now", move |format: &str| {
        let now = now.unwrap_or_else(SystemTime::now);
        strftime(format, now)
    });
    environment
}

/// A moment in local time, in the form of C's `strftime`.
fn strftime(format: &str, moment: SystemTime) -> Result<String, Error> {
    let items: Vec<Item> = StrftimeItems::new(format).collect();
    if items.contains(&Item::Error) {
        return Err(refused(format!("strftime_now does not know all of `{format}`")));
    }
    Ok(DateTime::<Local>::from(moment).format_with_items(items.iter()).to_string())
}

/// `truncate`, whose arguments may come without their names.
fn truncate(state: &mut State, value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let names = ["length", "killwords", "end", "leeway"];
    let mut named: Vec<(String, Value)> = Vec::new();
    for (argument, name) in args.into_values().into_iter().zip(names) {
        if argument.is_kwargs() {
            for name in argument.try_iter()? {
                named.push((name.to_string(), argument.get_item(&name)?));
            }
        } else {
            named.push((name.to_owned(), argument));
        }
    }
    filters::truncate(state, value, named.into_iter().collect::<Kwargs>())
}
