//! ZeroSCROLLS (Shaham et al. 2023), `metrics` of its dataset; ROUGE and F1 are those of SCROLLS.

use deunicode::deunicode_char;

use super::{
    best, hit,
    rouge::google::{self, Kind},
    text::{Bag, is_space, normalize, pattern, split, word_runs},
};

/// The geometric mean for one answer. ZeroSCROLLS takes it of the means over all answers, which is
/// no less than the mean of this; take the metrics of its three parts where that number is wanted.
pub(super) fn rouge(answer: &str, references: &[String]) -> f64 {
    let parts = [Kind::N(1), Kind::N(2), Kind::L];
    parts.map(|kind| google::rouge(kind, answer, references)).iter().product::<f64>().cbrt()
}

pub(super) fn f1(answer: &str, references: &[String]) -> f64 {
    let words = |text: &str| -> Bag<String> {
        split(&to_ascii(&normalize(text))).map(str::to_owned).collect()
    };
    let answer = words(answer);
    best(references, |text| answer.f1(&words(text)))
}

/// As the Python package `unidecode`, which leaves out more than the crate does. They agree in
/// Latin, Greek, Cyrillic, Chinese, Japanese and Korean, but for a few letters of old or small
/// languages, and in the signs named here.
fn to_ascii(text: &str) -> String {
    let ascii = |c| match c {
        '¼' => " 1/4",
        '½' => " 1/2",
        '¾' => " 3/4",
        '№' => "No. ",
        '℃' => "degC",
        '℉' => "degF",
        '™' => "(tm)",
        '−' | '∕' | '∖' | '∗' | '∣' | '∶' | '∼' | '≤' | '≥' | '≦' | '≧' => {
            deunicode_char(c).unwrap_or_default()
        }
        // Mathematical and technical signs, pictures, radicals, and all beyond the first plane.
        '\u{2200}'..='\u{23ff}'
        | '\u{2600}'..='\u{27ff}'
        | '\u{2900}'..='\u{2fff}'
        | '\u{10000}'.. => "",
        c => deunicode_char(c).unwrap_or_default(),
    };
    text.chars().map(ascii).collect()
}

pub(super) fn accuracy(answer: &str, references: &[String]) -> f64 {
    let said = letter(answer);
    hit(said.is_some() && references.iter().any(|text| letter(text) == said))
}

/// The first of A to D that is a word.
fn letter(text: &str) -> Option<&str> {
    word_runs(text).map(|word| &text[word]).find(|word| matches!(*word, "A" | "B" | "C" | "D"))
}

pub(super) fn similarity(answer: &str, references: &[String]) -> f64 {
    let Some(said) = percentage(answer) else { return 0.0 };
    best(references, |text| {
        percentage(text).map_or(0.0, |right| 0.5_f64.powf((right - said).abs() / 10.0))
    })
}

fn percentage(text: &str) -> Option<f64> {
    pattern!(r"([0-9]+\.?[0-9]*)%").captures(text)?[1].parse().ok()
}

pub(super) fn concordance(answer: &str, references: &[String]) -> f64 {
    let Some(said) = places(answer) else { return 0.0 };
    best(references, |text| match places(text) {
        Some(right) if right.len() == said.len() => concordance_index(&right, &said),
        _ => 0.0,
    })
}

/// Place of each of the numbers 1, 2, … in a list, if it lists them all, each once.
fn places(text: &str) -> Option<Vec<usize>> {
    let list: String = text
        .chars()
        .filter(|c| c.is_ascii_digit() || is_space(*c) || *c == ',')
        .map(|c| if c == ',' { ' ' } else { c })
        .collect();
    let numbers = split(&list).map(|number| number.parse().ok()).collect::<Option<Vec<usize>>>()?;
    let mut places = vec![0; numbers.len()];
    for (place, number) in (1..).zip(&numbers) {
        match number.checked_sub(1).and_then(|number| places.get_mut(number)) {
            Some(found) if *found == 0 => *found = place,
            _ => return None,
        }
    }
    Some(places)
}

/// The share of pairs in the same order. 1 for a single number, where the official scorer has no
/// answer.
fn concordance_index(right: &[usize], said: &[usize]) -> f64 {
    let (mut same, mut pairs) = (0_usize, 0_usize);
    for i in 0..right.len() {
        for j in 0..i {
            pairs += 1;
            same += usize::from((right[i] < right[j]) == (said[i] < said[j]));
        }
    }
    match (pairs, right.len()) {
        (0, numbers) => hit(numbers > 0),
        _ => same as f64 / pairs as f64,
    }
}
