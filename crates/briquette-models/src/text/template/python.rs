//! Methods of Python's values that templates call.

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Tuple, ValueKind, from_args},
};
use minijinja_contrib::pycompat;

use super::{
    budget::{check, refused},
    multiply,
};

/// A method of a text, a list or a map.
pub(super) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(bytes) = multiply::method(state, name, value, args)? {
        check(state, name, bytes)?;
    }
    let own = match (value.as_str(), value.kind()) {
        (Some(text), _) => text_method(text, name, args),
        (None, ValueKind::Seq) => list_method(value, name, args),
        (None, ValueKind::Map) if name == "copy" => from_args::<()>(args).map(|()| value.clone()),
        _ => Err(ErrorKind::UnknownMethod.into()),
    };
    match own {
        Err(error) if error.kind() == ErrorKind::UnknownMethod => {
            pycompat::unknown_method_callback(state, value, name, args)
        }
        other => other,
    }
}

fn text_method(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (part,) = match name {
        "index" | "rindex" | "partition" | "rpartition" | "removeprefix" | "removesuffix" => {
            from_args::<(&str,)>(args)?
        }
        _ => return Err(ErrorKind::UnknownMethod.into()),
    };
    let place = if name.starts_with('r') { text.rfind(part) } else { text.find(part) };
    Ok(match (name, place) {
        ("removeprefix", _) => text.strip_prefix(part).unwrap_or(text).into(),
        ("removesuffix", _) => text.strip_suffix(part).unwrap_or(text).into(),
        ("index" | "rindex", Some(place)) => {
            text.get(..place).unwrap_or_default().chars().count().into()
        }
        ("index" | "rindex", None) => return Err(refused("substring not found")),
        (_, Some(place)) => {
            let (before, rest) = text.split_at(place);
            Tuple::from([before, part, rest.strip_prefix(part).unwrap_or(rest)].map(Value::from))
                .into()
        }
        ("partition", None) => Tuple::from([text, "", ""].map(Value::from)).into(),
        (_, None) => Tuple::from(["", "", text].map(Value::from)).into(),
    })
}

fn list_method(value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match name {
        "copy" => from_args::<()>(args).map(|()| value.clone()),
        "index" => {
            let (item,) = from_args::<(&Value,)>(args)?;
            let place = value.try_iter()?.position(|other| other == *item);
            place.map(Value::from).ok_or_else(|| refused(format!("{item} is not in the list")))
        }
        _ => Err(ErrorKind::UnknownMethod.into()),
    }
}
