//! Comments end at the column where code does, which the stable formatter checks of code alone.

use crate::{read, sources};

/// Columns of a line, as `rustfmt.toml` has them.
const WIDTH: usize = 100;

/// Whether a line is a comment that could be broken: not in a code block, no table, several words.
fn breaks(line: &str) -> bool {
    let text = line.trim_start().trim_start_matches(['/', '!']).trim();
    text.contains(' ') && !text.starts_with('|')
}

/// Numbers of the comment lines of a file that are too wide.
fn wide(text: &str) -> Vec<usize> {
    let mut in_code = false;
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
        if comment.trim_start_matches(['/', '!']).trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if !in_code && line.chars().count() > WIDTH && breaks(line) {
            found.push(number);
        }
    }
    found
}

#[test]
fn comments_are_as_wide_as_code() {
    let mut wrong = Vec::new();
    for path in sources() {
        wrong.extend(wide(&read(&path)).iter().map(|number| format!("{path}:{number}")));
    }
    assert!(wrong.is_empty(), "wider than {WIDTH} columns:\n{}", wrong.join("\n"));
}

#[test]
fn tables_code_and_single_words_may_be_wide() {
    let long = "x".repeat(WIDTH);
    let words = format!("{} {}", &long[..60], &long[..60]);
    let text = format!(
        "/// {words}\n/// ```\n/// {words}\n/// ```\n//! | {words} |\n// {long}\nlet x = {words};\n    // {words}\n"
    );
    assert_eq!(wide(&text), [1, 8]);
}
