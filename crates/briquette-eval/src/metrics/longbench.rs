//! LongBench (Bai et al. 2024): `LongBench/metrics.py`, and `LongBench/eval.py` for the best over
//! references and the first line that some datasets are cut to.

use rapidfuzz::distance::indel;
use regex::Regex;

use super::{
    best, difflib, f1, hit,
    rouge::package,
    text::{Bag, chinese, first_line, pattern},
};

pub(super) fn first_line_f1(answer: &str, references: &[String]) -> f64 {
    f1::qa_f1(first_line(answer), references)
}

pub(super) fn f1_zh(answer: &str, references: &[String]) -> f64 {
    let words = |text: &str| -> Bag<String> {
        let words = chinese::words(text).into_iter().map(chinese::normalize);
        words.filter(|word| !word.is_empty()).collect()
    };
    let answer = words(answer);
    best(references, |text| answer.f1(&words(text)))
}

pub(super) fn rouge(answer: &str, references: &[String]) -> f64 {
    best(references, |text| package::rouge_l(answer, text))
}

pub(super) fn first_line_rouge(answer: &str, references: &[String]) -> f64 {
    rouge(first_line(answer), references)
}

pub(super) fn rouge_zh(answer: &str, references: &[String]) -> f64 {
    let words = |text: &str| chinese::words(text).join(" ");
    let answer = words(answer);
    best(references, |text| package::rouge_l(&answer, &words(text)))
}

pub(super) fn classification(answer: &str, references: &[String], classes: &[String]) -> f64 {
    let answer = first_line(answer);
    let named: Vec<&str> =
        classes.iter().map(String::as_str).filter(|class| answer.contains(class)).collect();
    best(references, |right| {
        let mut named = named.clone();
        // A name within the right one does not count against it. The scorer takes names out of the
        // list it walks along, so the name behind one taken out is not looked at.
        let mut at = 0;
        while let Some(&name) = named.get(at) {
            if right.contains(name) && name != right {
                let first = named.iter().position(|other| *other == name);
                named.remove(first.unwrap_or(at));
            }
            at += 1;
        }
        if named.contains(&right) { 1.0 / named.len() as f64 } else { 0.0 }
    })
}

pub(super) fn retrieval(answer: &str, references: &[String]) -> f64 {
    share_of_paragraphs(pattern!(r"Paragraph (\d+)"), answer, references)
}

pub(super) fn retrieval_zh(answer: &str, references: &[String]) -> f64 {
    share_of_paragraphs(pattern!(r"段落(\d+)"), answer, references)
}

fn share_of_paragraphs(paragraph: &Regex, answer: &str, references: &[String]) -> f64 {
    best(references, |text| {
        paragraph.captures(text).map_or(0.0, |found| share_of_numbers(answer, &found[1]))
    })
}

pub(super) fn count(answer: &str, references: &[String]) -> f64 {
    best(references, |text| share_of_numbers(answer, text))
}

/// The share of the numbers in a text that are this one, digit by digit.
fn share_of_numbers(text: &str, number: &str) -> f64 {
    let numbers: Vec<&str> = pattern!(r"\d+").find_iter(text).map(|found| found.as_str()).collect();
    let right = numbers.iter().filter(|found| **found == number).count();
    right as f64 / numbers.len().max(1) as f64
}

pub(super) fn code_similarity(answer: &str, references: &[String]) -> f64 {
    let indel = |a: &str, b: &str| indel::normalized_similarity(a.chars(), b.chars());
    best(references, |text| whole_percent(line_of_code(answer), text, indel))
}

pub(super) fn code_similarity_difflib(answer: &str, references: &[String]) -> f64 {
    best(references, |text| whole_percent(line_of_code(answer), text, difflib::ratio))
}

/// The first line that is no comment and no fence.
fn line_of_code(answer: &str) -> &str {
    let other = |line: &&str| !line.contains(['`', '#']) && !line.contains("//");
    answer.trim_start_matches('\n').split('\n').find(other).unwrap_or_default()
}

/// A ratio in whole percent, as `fuzz.ratio` gives it; 1 for equal texts, else 0 for an empty one.
fn whole_percent(a: &str, b: &str, ratio: impl Fn(&str, &str) -> f64) -> f64 {
    if a == b || a.is_empty() || b.is_empty() {
        return hit(a == b);
    }
    (100.0 * ratio(a, b)).round_ties_even() / 100.0
}
