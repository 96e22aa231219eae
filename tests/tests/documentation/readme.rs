//! Every number of the README is one of the code or of a result.

use std::{collections::BTreeSet, fs};

use serde_json::Value;

use crate::{read, root};

/// Numbers that are written as words; before a [unit](UNITS) they are measured.
const WORDS: [&str; 12] = [
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve",
];

/// Units of what is measured.
const UNITS: [&str; 5] = ["seconds", "minutes", "hours", "times", "percent"];

/// The only piece of a file between two texts.
fn between(path: &str, start: &str, end: &str) -> String {
    let text = read(path);
    let mut parts = text.split(start).skip(1).map(|rest| rest.split(end).next().unwrap());
    let part = parts.next().unwrap_or_else(|| panic!("{path}: no `{start}`"));
    assert!(parts.all(|other| other == part), "{path}: several `{start}`");
    part.to_owned()
}

/// The version of a Python package that the fixtures were made with.
fn package(name: &str) -> String {
    between("tests/goldens/requirements.txt", &format!("{name}=="), "\n")
}

/// A version without its patch.
fn minor(version: &str) -> &str {
    version.rsplit_once('.').unwrap().0
}

/// A number as prose has it, with a comma before thousands.
fn with_comma(number: usize) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", number / 1000, number % 1000),
    }
}

/// Parameters of the embedded model.
fn parameters() -> u64 {
    let file = fs::read(root().join("models/ember-7m/model.safetensors")).unwrap();
    let (length, rest) = file.split_first_chunk().unwrap();
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap();
    let header: Value = serde_json::from_slice(&rest[..length]).unwrap();
    let shapes = header.as_object().unwrap().values().filter_map(|one| one["shape"].as_array());
    shapes.map(|shape| shape.iter().map(|side| side.as_u64().unwrap()).product::<u64>()).sum()
}

/// Prompts of each cell of the leaderboard.
fn prompts() -> String {
    let table = read("docs/src/results/leaderboard-smollm2.csv");
    let prompts: BTreeSet<&str> =
        table.lines().skip(1).map(|line| line.split(',').nth(5).unwrap()).collect();
    assert_eq!(prompts.len(), 1, "{prompts:?}");
    prompts.into_iter().collect()
}

/// The phrases of the README that hold a number, with the numbers of their sources.
fn phrases() -> Vec<String> {
    let burn = between("Cargo.toml", "\nburn = { version = \"", "\"");
    let length = between("runs/leaderboard.toml", "\nlengths = [", "]").parse().unwrap();
    let length = with_comma(length);
    let answer = between("docs/src/start.md", "```text\n", "\n");
    let budgets = between("runs/leaderboard.toml", "\nbudgets = [", "]");
    assert_eq!(budgets, "\"75%\", \"50%\", \"25%\", \"12.5%\"", "the head of README's table");
    let kvpress = package("kvpress");
    vec![
        format!("KV-cache compression for [Burn](https://burn.dev) {}:", minor(&burn)),
        format!("Rust {} or later", between("Cargo.toml", "\nrust-version = \"", "\"")),
        format!("on SmolLM2-135M, {length} tokens, asked after"),
        format!("It answers `{answer}`, as it does with the"),
        format!("a {}-million-parameter Llama model", (parameters() + 500_000) / 1_000_000),
        format!("at {length} tokens, the two of its tasks"),
        format!("{} prompts each", prompts()),
        format!("the same prompts in kvpress {kvpress}]"),
        format!("presses of kvpress {kvpress} keep"),
        format!("agree with `transformers` {} ", minor(&package("transformers"))),
        format!(
            "to {}.",
            between("crates/briquette-models/tests/architectures.rs", "worst <= ", ",")
        ),
        // The interval of `runs/leaderboard.py`.
        "95 % intervals".to_owned(),
        // A name.
        "Gemma 3,".to_owned(),
    ]
}

/// The text of the README that tests of their own do not read: without code, the tables, the
/// targets of links, and lines joined. A row of the methods keeps what is said of it, without its
/// paper.
fn prose() -> String {
    let readme = read("README.md");
    let mut prose = String::new();
    for text in readme.split("\n```").step_by(2) {
        for line in text.lines() {
            let row: Vec<&str> = line.trim_matches('|').split('|').collect();
            match line.starts_with('|') {
                false => prose += line,
                true if row.len() == 3 => prose += row[2],
                true => {}
            }
            prose += " ";
        }
    }
    prose.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Words that begin with a digit, and numbers before a unit.
fn numbers(text: &str) -> Vec<String> {
    // Targets of links are no text.
    let mut shown = String::new();
    for (number, part) in text.split("](").enumerate() {
        shown += if number == 0 { part } else { part.split_once(')').map_or("", |(_, rest)| rest) };
        shown += " ";
    }
    let letters = |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    let words: Vec<String> = shown.split_whitespace().map(letters).collect();
    let mut found: Vec<String> = words
        .iter()
        .filter(|word| word.starts_with(|c: char| c.is_ascii_digit()))
        .cloned()
        .collect();
    for pair in words.windows(2) {
        if WORDS.contains(&pair[0].as_str()) && UNITS.contains(&pair[1].as_str()) {
            found.push(pair.join(" "));
        }
    }
    found
}

#[test]
fn every_number_has_a_source() {
    let mut prose = prose();
    for phrase in phrases() {
        assert!(prose.contains(&phrase), "README.md does not say `{phrase}`");
        prose = prose.replace(&phrase, " ");
    }
    let left = numbers(&prose);
    assert!(left.is_empty(), "README.md: {left:?} come from no source that a test reads");
}

#[test]
fn a_number_is_found_however_it_is_written() {
    let text = "On an H200 [it](file-7.md) takes 1.75 times as long, (22 ms) or seven minutes; of `ember-7m` two are 10⁻⁶ off.";
    assert_eq!(numbers(text), ["1.75", "22", "10⁻⁶", "seven minutes"]);
}
