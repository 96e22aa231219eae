//! Operations whose result can be larger than all they are given together: the size is worked out
//! before they are called.

use minijinja::{
    Environment, Error, State, Value, context, filters,
    formatting::{FormatStyle, format as formatted},
    value::{Kwargs, Rest, ValueKind, ValueOrKwargs},
};

use super::{
    budget::{check, made, refused, weigh},
    check::{PERCENT, TIMES},
};

/// The filters of `minijinja` behind those that work out a size first.
const MAP: &str = "%map";

/// Replaces the filters of an environment that can multiply what they are given.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_filter("%join", filters::join);
    environment.add_filter("%replace", filters::replace);
    environment.add_filter("%indent", filters::indent);
    environment.add_filter("%format", filters::format);
    environment.add_filter("%batch", filters::batch);
    environment.add_filter("%slice", filters::slice);
    environment.add_filter("%sum", filters::sum);
    environment.add_filter(MAP, filters::map);
    limit(environment, "join", "%join", join);
    limit(environment, "replace", "%replace", replace);
    limit(environment, "indent", "%indent", indent);
    limit(environment, "format", "%format", format);
    limit(environment, "batch", "%batch", parts);
    limit(environment, "slice", "%slice", parts);
    limit(environment, "sum", "%sum", sum);
    environment.add_filter("map", map);
    environment.add_filter(TIMES, times);
    environment.add_filter(PERCENT, percent);
}

/// Works out the bytes of a result from the value and the arguments.
type Size = fn(&State, &[Value]) -> Result<usize, Error>;

fn limit(
    environment: &mut Environment<'static>,
    name: &'static str,
    original: &'static str,
    size: Size,
) {
    environment.add_filter(
        name,
        move |state: &mut State, value: Value, rest: Rest<ValueOrKwargs>| {
            let mut all = vec![value];
            all.extend(rest.into_values());
            check(state, name, size(state, &all)?)?;
            state.apply_filter(original, &all)
        },
    );
}

/// The bytes of `text.join(list)`, `text.replace(…)` and `text.format(…)`, or `None` for another
/// method.
pub(super) fn method(
    state: &State,
    name: &str,
    value: &Value,
    args: &[Value],
) -> Result<Option<usize>, Error> {
    let all: Vec<Value> = std::iter::once(value).chain(args).cloned().collect();
    match (name, args) {
        ("join", [list, ..]) => join(state, &[list.clone(), value.clone()]).map(Some),
        ("replace", _) => replace(state, &all).map(Some),
        ("format", _) => fields(state, '{', &all).map(Some),
        _ => Ok(None),
    }
}

/// The arguments behind the value, those with names too.
fn arguments(all: &[Value]) -> impl Iterator<Item = Value> {
    all.iter().skip(1).flat_map(|argument| match argument.is_kwargs() {
        true => {
            let named = argument.try_iter().into_iter().flatten();
            named.filter_map(|name| argument.get_item(&name).ok()).collect()
        }
        false => vec![argument.clone()],
    })
}

fn texts(all: &[Value]) -> usize {
    arguments(all).filter_map(|it| it.as_str().map(str::len)).fold(0, usize::saturating_add)
}

fn number(all: &[Value]) -> usize {
    arguments(all).filter_map(|it| it.as_usize()).max().unwrap_or(0)
}

fn join(state: &State, all: &[Value]) -> Result<usize, Error> {
    let Some(list) = all.first() else { return Ok(0) };
    let between = weigh(state, list)?.items.saturating_mul(texts(all));
    Ok(weigh(state, list)?.bytes.saturating_add(between))
}

fn replace(_: &State, all: &[Value]) -> Result<usize, Error> {
    let [text, from, to, ..] = all else { return Ok(0) };
    let [text, from, to] = [text, from, to].map(Value::to_string);
    let times = text.matches(from.as_str()).count();
    Ok(text.len().saturating_add(times.saturating_mul(to.len())))
}

fn indent(_: &State, all: &[Value]) -> Result<usize, Error> {
    let text = all.first().and_then(Value::as_str).unwrap_or_default();
    let lines = text.matches('\n').count().saturating_add(2);
    Ok(text.len().saturating_add(lines.saturating_mul(number(all).max(4))))
}

fn format(state: &State, all: &[Value]) -> Result<usize, Error> {
    fields(state, '%', all)
}

/// The bytes of a format, whose fields begin with `mark`: each may be as long as the longest
/// argument and every number in it.
fn fields(state: &State, mark: char, all: &[Value]) -> Result<usize, Error> {
    let text = all.first().and_then(Value::as_str).unwrap_or_default();
    let mut longest = 0;
    for argument in arguments(all) {
        longest = weigh(state, &argument)?.bytes.max(longest);
    }
    let mut bytes = text.len();
    for field in text.split(mark).skip(1) {
        // `%(name)5d`: the name ends first.
        let field = match field.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            Some((_, rest)) if mark == '%' => rest,
            _ => field,
        };
        let end = match mark {
            '{' => field.find('}'),
            _ => field.find(|it: char| it.is_ascii_alphabetic()),
        };
        let field = end.and_then(|end| field.get(..end)).unwrap_or(field);
        // A star takes the width from the arguments.
        let named = if field.contains('*') { number(all) } else { 0 };
        let widths = field.split(|it: char| !it.is_ascii_digit()).filter(|run| !run.is_empty());
        let widths = widths.map(|run| run.parse().unwrap_or(usize::MAX));
        let width = widths.fold(named, usize::saturating_add);
        bytes = bytes.saturating_add(longest).saturating_add(width);
    }
    Ok(bytes)
}

fn parts(_: &State, all: &[Value]) -> Result<usize, Error> {
    Ok(number(all).saturating_mul(size_of::<Vec<Value>>() * 2))
}

/// The square of the items: a sum that is no number is copied with each that is added.
fn sum(state: &State, all: &[Value]) -> Result<usize, Error> {
    let Some(list) = all.first() else { return Ok(0) };
    if arguments(all).all(|argument| argument.is_number()) {
        return Ok(0);
    }
    let items = list.as_str().map_or(weigh(state, list)?.items, str::len);
    Ok(items.saturating_mul(items))
}

/// `map`, with each result of its filter counted.
fn map(state: &mut State, value: Value, rest: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut all = rest.into_values();
    let filter = match all.first().and_then(Value::as_str) {
        Some(filter) if filter.starts_with('%') => {
            return Err(refused(format!("filter {filter} is unknown")));
        }
        Some(filter) => filter.to_owned(),
        None => {
            all.insert(0, value);
            return state.apply_filter(MAP, &all);
        }
    };
    let mut results = Vec::new();
    for item in value.try_iter()?.checked() {
        if let Some(first) = all.first_mut() {
            *first = item?;
        }
        let result = state.apply_filter(&filter, &all)?;
        results.push(made(state, result)?);
    }
    Ok(results.into())
}

fn times(state: &mut State, left: Value, right: Value) -> Result<Value, Error> {
    for (value, times) in [(&left, &right), (&right, &left)] {
        if let Some(times) = times.as_usize() {
            let bytes = match value.as_str() {
                Some(text) => text.len(),
                None if value.as_object().is_none() => 0,
                None => weigh(state, value)?.bytes,
            };
            check(state, "*", bytes.saturating_mul(times))?;
        }
    }
    state.env().compile_expression("left * right")?.eval(context! { left, right })
}

/// `%` of a text, as Python formats it with a value, a tuple or a map; of numbers the rest.
fn percent(state: &mut State, left: Value, right: Value) -> Result<Value, Error> {
    let Some(text) = left.as_str() else {
        return state.env().compile_expression("left % right")?.eval(context! { left, right });
    };
    let mut all = vec![left.clone()];
    match right.kind() {
        ValueKind::Seq if right.is_tuple() => all.extend(right.try_iter()?),
        ValueKind::Map => {
            let named: Result<Vec<(String, Value)>, Error> = right
                .try_iter()?
                .map(|name| Ok((name.to_string(), right.get_item(&name)?)))
                .collect();
            all.push(named?.into_iter().collect::<Kwargs>().into());
        }
        _ => all.push(right),
    }
    check(state, "%", format(state, &all)?)?;
    let args = all.get(1..).unwrap_or_default();
    formatted(FormatStyle::Printf, text, args).map(Value::from)
}
