//! Doc comments begin with a noun or a verb, as a colleague would say it. Those that begin with a question word and ask nothing
//! are counted, and their number only falls.

use std::{fs, path::Path};

use crate::{read, root};

/// Beginnings that are to go.
const BEGINNINGS: [&str; 6] =
    ["What", "Of what", "From what", "Where those", "Whose", "Another of"];

/// Doc comments in the files below a folder that begin so. Whoever rewrites some lowers the number to the one that the test names.
/// No number rises: a new doc comment begins with a noun or a verb. After a merge of two branches that both lowered one, the test
/// names the number of both.
const COUNTS: [(&str, usize); 9] = [
    ("benches", 3),
    ("crates/briquette-eval/src", 0),
    ("crates/briquette-graph/src", 0),
    ("crates/briquette-models/src", 0),
    ("crates/briquette-ops/src", 47),
    ("crates/briquette/src", 8),
    ("examples", 0),
    ("kernels-cubecl/src", 14),
    ("tests", 5),
];

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

/// The doc comments that begin so, each with the number of its first line. A run of lines with one mark is a doc comment.
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

/// The paths of all Rust files below a folder, from the root of the repository.
fn sources(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "target").collect();
    names.sort();
    let mut all = Vec::new();
    for path in names.into_iter().map(|name| format!("{folder}/{name}")) {
        if root().join(&path).is_dir() {
            all.extend(sources(&path));
        } else if Path::new(&path).extension().is_some_and(|ending| ending == "rs") {
            all.push(path);
        }
    }
    all
}

/// The line of [`COUNTS`] that names a folder.
fn place(folder: &str) -> String {
    let start = format!("(\"{folder}\", ");
    let lines = include_str!("sentences.rs").lines();
    let number = lines.zip(1..).find(|(line, _)| line.trim_start().starts_with(&start));
    format!("{}:{}", file!(), number.map_or(1, |(_, number)| number))
}

#[test]
fn doc_comments_that_begin_with_a_question_word_grow_fewer() {
    let mut wrong = Vec::new();
    for (folder, most) in COUNTS {
        let mut all = Vec::new();
        for path in sources(folder) {
            let text = read(&path);
            all.extend(found(&text).iter().map(|(line, text)| format!("{path}:{line}: {text}")));
        }
        let (at, number) = (place(folder), all.len());
        if number > most {
            let all = all.join("\n");
            wrong.push(format!(
                "{at}: {number} doc comments below {folder} begin with one of {BEGINNINGS:?}, and {most} may. Rewrite \
                 those that are new, so that they begin with a noun or a verb:\n{all}"
            ));
        } else if number < most {
            wrong.push(format!("{at}: {folder} has {number} left of {most}. Write {number}."));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn every_crate_is_counted() {
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let folder = format!("crates/{name}/src");
        let counted = COUNTS.iter().any(|(counted, _)| *counted == folder);
        assert!(counted, "{}: COUNTS has no row for {folder}", file!());
    }
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
