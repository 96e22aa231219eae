//! InfiniteBench (Zhang et al. 2024): `src/compute_scores.py`.

use super::{
    best, hit,
    text::{Bag, ascii_digits, chinese, pattern, space_out, split},
};

/// Signs taken for spaces where words are looked for.
const SIGNS: [char; 10] = ['\n', ':', '"', '\'', '.', ',', '?', '!', '{', '}'];

const OPTIONS: &str = "ABCD";

pub(super) fn first_number(answer: &str, references: &[String]) -> f64 {
    let number = pattern!("[0-9]+").find(answer).map(|found| found.as_str());
    hit(references.first().is_some_and(|text| text == number.unwrap_or_default()))
}

pub(super) fn kv_retrieval(answer: &str, references: &[String]) -> f64 {
    let answer = space_out(answer, &SIGNS);
    hit(references.first().is_some_and(|text| split(&answer).any(|word| word == text)))
}

pub(super) fn dialogue(answer: &str, references: &[String]) -> f64 {
    kv_retrieval(&answer.to_uppercase(), references)
}

pub(super) fn choice(answer: &str, references: &[String]) -> f64 {
    let answer = trim(answer);
    let is_right = |text: &str| references.iter().any(|right| right == text);
    let Some(first) = answer.chars().next() else { return 0.0 };
    if OPTIONS.contains(first) {
        return hit(is_right(first.encode_utf8(&mut [0; 4])));
    }
    if is_right(answer) {
        return 1.0;
    }
    let signs: Vec<char> = SIGNS.into_iter().filter(|sign| *sign != ':').collect();
    let answer = single_spaces(space_out(answer, &signs));
    for prefix in ["answer is:", "answer:", "answer is", "option is"] {
        if let Some(behind) = behind(&answer, prefix) {
            return hit(references.iter().any(|text| behind.starts_with(text.as_str())));
        }
    }
    let said = split(&answer).find(|word| OPTIONS.contains(word));
    hit(said.is_some_and(is_right))
}

pub(super) fn f1_zh(answer: &str, references: &[String]) -> f64 {
    let characters = |text: &str| chinese::normalize(text).chars().collect::<Bag<char>>();
    let answer = characters(answer);
    best(references, |text| answer.f1(&characters(text)))
}

pub(super) fn code_run(answer: &str, references: &[String]) -> f64 {
    let answer = space_out(answer, &['\n', '.', '`', '\'', '"', ':']);
    let said = split(&answer).last().and_then(integer);
    hit(said.is_some() && references.first().is_some_and(|text| integer(text) == said))
}

pub(super) fn code_debug(answer: &str, references: &[String]) -> f64 {
    let [function, option] = references else { return 0.0 };
    let answer = trim(answer);
    if let Some(rest) = answer.strip_prefix(option.as_str())
        && rest.starts_with(['.', ':'])
    {
        return 1.0;
    }
    let answer = space_out(answer, &['\n', '`', '\'', '"', '-', '*']);
    let answer = single_spaces(answer.replace("Option", " ").replace("option", " "));
    for prefix in ["answer is:", "is:", "answer:", "correct option is:"] {
        if let Some(behind) = behind(&answer, prefix) {
            return hit(
                behind.starts_with(option.as_str()) || behind.starts_with(function.as_str())
            );
        }
    }
    0.0
}

/// As numbers: the official scorer reads the answer as what the reference is, and stops where it
/// reads a fraction for a whole number.
pub(super) fn math_find(answer: &str, references: &[String]) -> f64 {
    let answer = ascii_digits(answer);
    let Some(said) = pattern!(r"[0-9]+\.[0-9]+|[0-9]+").find(&answer) else { return 0.0 };
    let Some(right) = references.first() else { return 0.0 };
    if let (Some(said), Some(right)) = (integer(said.as_str()), integer(right)) {
        return hit(said == right);
    }
    let said = said.as_str().parse::<f64>();
    hit(said.is_ok_and(|said| right.trim().parse::<f64>().is_ok_and(|right| said == right)))
}

pub(super) fn math_calc(answer: &str, references: &[String]) -> f64 {
    let numbers = pattern!("[0-9]+").find_iter(answer).map(|found| integer(found.as_str()));
    let right = references
        .iter()
        .zip(numbers)
        .take_while(|(text, number)| number.is_some() && integer(text) == *number);
    right.count() as f64 / references.len().max(1) as f64
}

/// Text behind a prefix and one more character. Empty if the text ends with the prefix.
fn behind<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (_, behind) = text.split_once(prefix)?;
    let mut behind = behind.chars();
    behind.next();
    Some(behind.as_str())
}

fn trim(text: &str) -> &str {
    text.trim_matches(super::text::is_space)
}

fn single_spaces(mut text: String) -> String {
    while text.contains("  ") {
        text = text.replace("  ", " ");
    }
    text
}

/// Reads an integer as Python's `int` does: a sign, digits of any script, single `_` between them.
fn integer(text: &str) -> Option<i128> {
    let text = ascii_digits(trim(text));
    let text = text.as_ref();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.split('_').any(|part| part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit())) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_read_as_python_reads_them() {
        for (text, number) in [("007", 7), ("-5", -5), ("+1_000", 1000), (" 3\n", 3), ("٤٢", 42)]
        {
            assert_eq!(integer(text), Some(number), "{text}");
        }
        for text in ["", "-", "--5", "1__0", "_1", "3.0", "1e3"] {
            assert_eq!(integer(text), None, "{text}");
        }
    }

    #[test]
    fn a_whole_number_written_as_a_fraction_is_found() {
        let score = |answer: &str, right: &str| math_find(answer, &[right.to_owned()]);
        assert_eq!(score("It is 7.0.", "7"), 1.0);
        assert_eq!(score("It is 7.5.", "7"), 0.0);
        assert_eq!(score("هو ٧.٥.", "7.5"), 1.0);
    }
}
