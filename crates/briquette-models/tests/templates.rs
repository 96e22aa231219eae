//! Chat templates that are put together at random from what multiplies: each ends, with a text or
//! an error, and none holds more memory than the bound says.

use briquette_models::{ChatMessage, ChatTemplate, Error};
use proptest::prelude::*;

mod memory;

/// An expression of a text, a list or a number, of whatever stands in `x.a`, `x.b` and `m`.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "x.a",
        "x.b",
        "'ab'",
        "'a\nb'",
        "'%s%s'",
        "'{0}{0}'",
        "[1, 'a']",
        "(1, 'b')",
        "{'k': 'v'}",
        "messages",
        "m.content",
        "range(9)",
        "999999999",
        "65536",
        "3",
        "none",
        "x",
        "'%9999d'",
        "bos_token",
    ]);
    leaf.prop_map(str::to_owned).prop_recursive(4, 24, 3, |inner| {
        let two = (inner.clone(), inner.clone());
        let operators =
            prop::sample::select(vec!["~", "+", "*", "%", "**", "-", "or", "and", "==", "in"]);
        let filters = prop::sample::select(vec![
            "string",
            "list",
            "upper",
            "tojson",
            "join",
            "reverse",
            "e",
            "length",
            "sort",
            "first",
            "items",
            "unique",
            "title",
            "trim",
            "int",
            "sum",
            "wordcount",
            "striptags",
        ]);
        let with_argument = prop::sample::select(vec![
            "replace('a', {})",
            "join({})",
            "indent({}, true, true)",
            "format({}, {})",
            "batch({}, 'ab')",
            "slice({})",
            "tojson(indent={})",
            "default({}, true)",
            "map('replace', 'a', {})",
            "map('string')|list",
            "truncate({})",
            "sum(start={})",
            "map(attribute={}, default={})",
            "dictsort({})",
            "round({})",
            "center({})",
            "split({})",
        ]);
        let methods = prop::sample::select(vec![
            "join({})",
            "replace('a', {})",
            "format({}, a={})",
            "split({})",
            "strip({})",
            "partition({})",
            "copy()",
            "items()",
            "get({}, {})",
            "splitlines({})",
            "title()",
            "index({})",
        ]);
        prop_oneof![
            (two.clone(), operators).prop_map(|((a, b), op)| format!("({a} {op} {b})")),
            (inner.clone(), filters).prop_map(|(a, filter)| format!("({a})|{filter}")),
            (two.clone(), with_argument)
                .prop_map(|((a, b), filter)| format!("({a})|{}", filter.replace("{}", &b))),
            (two.clone(), methods)
                .prop_map(|((a, b), method)| format!("({a}).{}", method.replace("{}", &b))),
            two.clone().prop_map(|(a, b)| format!("[{a}, {b}, {a}]")),
            two.clone().prop_map(|(a, b)| format!("({a}, {b}, {b})")),
            two.clone().prop_map(|(a, b)| format!("{{'a': {a}, 'b': {b}, 'c': {a}}}")),
            two.clone().prop_map(|(a, b)| format!("({a} if {b} else {a})")),
            two.prop_map(|(a, b)| format!("f({a}, {b})")),
            inner.clone().prop_map(|a| format!("dict(a={a}, b={a})")),
            inner.clone().prop_map(|a| format!("namespace(a={a})")),
            inner.prop_map(|a| format!("({a})[::-1]")),
        ]
    })
}

/// Statements that set `x.a` and `x.b` again and again.
fn template() -> impl Strategy<Value = String> {
    let statement = (expression(), prop::sample::select(vec!["a", "b"]), 0..6_u8).prop_map(
        |(expression, name, form)| match form {
            0 => format!("{{{{ {expression} }}}}"),
            1 => format!("{{% set y %}}{{{{ x.a }}}}text{{{{ {expression} }}}}{{% endset %}}{{% set x.{name} = y %}}"),
            2 => format!("{{% filter replace('a', x.{name}) %}}{{{{ {expression} }}}}{{% endfilter %}}"),
            _ => format!("{{% set x.{name} = {expression} %}}"),
        },
    );
    (prop::collection::vec(statement, 1..4), prop::sample::select(vec![3, 60, 9999])).prop_map(
        |(statements, times)| {
            format!(
                "{{% macro f(a, b) %}}{{{{ a }}}}{{{{ b }}}}{{{{ a }}}}{{% endmacro %}}\
                 {{% set x = namespace(a='ab', b=['ab']) %}}{{% for m in messages %}}{{% for i in range({times}) %}}{}\
                 {{% endfor %}}{{% endfor %}}{{{{ x.a }}}}{{{{ x.b }}}}",
                statements.concat()
            )
        },
    )
}

#[test]
fn no_program_takes_all_memory() {
    let messages = [ChatMessage::new("user", "aab"), ChatMessage::new("assistant", "b\na")];
    memory::bounded("no_program_takes_all_memory", (400, 1024), template(), |text| {
        let template = ChatTemplate::new(&text, Some("<s>".into()), None);
        match template.and_then(|template| template.render(&messages, true)) {
            Ok(_) => true,
            Err(Error::ChatTemplate(_)) => false,
            Err(other) => panic!("{text}: {other}"),
        }
    });
}
