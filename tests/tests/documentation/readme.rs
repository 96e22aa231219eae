//! Every number of the README is one of the code or of a result.

use std::collections::BTreeSet;

use super::leaderboard::scores;
use crate::read;

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

/// The first two numbers of a version, which may be an exact one.
fn minor(version: &str) -> String {
    version.trim_start_matches('=').split('.').take(2).collect::<Vec<_>>().join(".")
}

/// A number as prose has it, with a comma before thousands.
fn with_comma(number: usize) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", number / 1000, number % 1000),
    }
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
    let rust = between("Cargo.toml", "\nrust-version = \"", "\"");
    let version = between("Cargo.toml", "[workspace.package]\nversion = \"", "\"");
    let length = between("runs/leaderboard.toml", "\nlengths = [", "]").parse().unwrap();
    let length = with_comma(length);
    let scores = scores();
    let score = |policy: &str, budget: &str| {
        format!("{:.2}", scores[&(policy.into(), budget.into(), "after".into())])
    };
    let prompts = prompts();
    vec![
        format!("KV-cache compression for [Burn](https://burn.dev) {}.", minor(&burn)),
        format!("Rust {rust} or later"),
        format!(
            "with `compactor` at 25 %, SmolLM2-135M finds {} of the numbers hidden in {length} \
             tokens; with the full cache it finds {}",
            score("compactor", "25%"),
            score("full", "-"),
        ),
        format!("SmolLM2-135M, {length} tokens, {prompts} prompts per task and cell"),
        format!("Version {},", minor(&version)),
        format!("agree with `transformers` {} ", minor(&package("transformers"))),
        format!(
            "to {}.",
            between("crates/briquette-models/tests/architectures.rs", "const NEAR: f32 = ", ";")
        ),
    ]
}

/// Versions stand in the addresses of badges too.
#[test]
fn badges_are_of_these_versions() {
    let burn = between("Cargo.toml", "\nburn = { version = \"", "\"");
    let rust = between("Cargo.toml", "\nrust-version = \"", "\"");
    let readme = read("README.md");
    for badge in [format!("badge/Rust-{rust}-"), format!("badge/Burn-{}-", minor(&burn))] {
        assert!(readme.contains(&badge), "README.md has no {badge}");
    }
}

/// The text of the README that tests of their own do not read: without code and the table, and
/// lines joined.
fn prose() -> String {
    let readme = read("README.md");
    let lines = readme.split("\n```").step_by(2).flat_map(str::lines);
    let prose = lines.filter(|line| !line.starts_with('|'));
    prose.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
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
