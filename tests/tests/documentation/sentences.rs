//! Doc comments begin with a noun or a verb, as a colleague would say it, and not with a question
//! word that asks nothing.

use crate::{read, sources};

/// Beginnings that say nothing.
const BEGINNINGS: [&str; 6] =
    ["What", "Of what", "From what", "Where those", "Whose", "Another of"];

/// The mark of a doc comment and the text behind it, if the line is one of a doc comment.
fn comment(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim();
    let (mark, text) =
        ["//!", "///"].into_iter().find_map(|mark| Some((mark, line.strip_prefix(mark)?)))?;
    (!text.starts_with('/')).then_some((mark, text.trim_start()))
}

/// Whether a text begins with one of the [`BEGINNINGS`], as a word of its own.
fn begins_so(text: &str) -> bool {
    let rest = |beginning: &str| text.strip_prefix(beginning);
    BEGINNINGS.into_iter().filter_map(rest).any(|rest| !rest.starts_with(char::is_alphanumeric))
}

/// The doc comments that begin so, each with the number of its first line. A run of lines with one
/// mark is a doc comment.
fn found(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut before = None;
    for (line, number) in text.lines().zip(1..) {
        let comment = comment(line);
        if let Some((mark, text)) = comment
            && before != Some(mark)
            && begins_so(text)
        {
            found.push((number, text));
        }
        before = comment.map(|(mark, _)| mark);
    }
    found
}

#[test]
fn doc_comments_begin_with_a_noun_or_a_verb() {
    let mut wrong = Vec::new();
    for path in sources() {
        let text = read(&path);
        wrong.extend(found(&text).iter().map(|(line, text)| format!("{path}:{line}: {text}")));
    }
    let wrong = wrong.join("\n");
    assert!(wrong.is_empty(), "doc comments that begin with one of {BEGINNINGS:?}:\n{wrong}");
}

#[test]
fn only_the_beginning_of_a_doc_comment_counts() {
    let lines = [
        "//! What it is.",
        "//! What it does.",
        "/// The number.",
        "///",
        "/// What it counts.",
        "fn f() {}",
        "    /// Of what it is made.",
        "//// What is no doc comment.",
        "// What is none either.",
        "/// Whatever comes.",
    ];
    let text = lines.join("\n");
    assert_eq!(found(&text), [(1, "What it is."), (7, "Of what it is made.")]);
}
