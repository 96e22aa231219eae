//! CoQA (Reddy et al. 2019): `_compute_turn_score` of its evaluation script.

use super::{
    best, hit,
    text::{Bag, normalize, words},
};

pub(super) fn exact_match(answer: &str, references: &[String]) -> f64 {
    let answer = normalize(answer);
    leave_one_out(references, |text| hit(normalize(text) == answer))
}

pub(super) fn f1(answer: &str, references: &[String]) -> f64 {
    let answer: Bag<String> = words(answer).into_iter().collect();
    leave_one_out(references, |text| {
        let text: Bag<String> = words(text).into_iter().collect();
        // Without words in one of them, they agree where neither has any.
        if answer.len == 0 || text.len == 0 {
            hit(answer.len == text.len)
        } else {
            answer.f1(&text)
        }
    })
}

/// The mean, over references, of the best score without that one: what a person is scored by, whose
/// own answer is one of the references. With a single reference its score.
fn leave_one_out(references: &[String], mut score: impl FnMut(&str) -> f64) -> f64 {
    if references.len() < 2 {
        return best(references, score);
    }
    let scores: Vec<f64> = references.iter().map(|text| score(text)).collect();
    let without = |left: usize| {
        let others = scores.iter().enumerate().filter(|(at, _)| *at != left);
        others.map(|(_, score)| *score).fold(0.0, f64::max)
    };
    (0..scores.len()).map(without).sum::<f64>() / scores.len() as f64
}
