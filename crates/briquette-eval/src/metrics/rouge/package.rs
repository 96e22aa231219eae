//! As the Python package `rouge` (pltrdy/rouge) counts ROUGE-L, of which LongBench takes F1.
//!
//! Its ways: a sentence ends at every `.`; words are cut at white space and keep their case and
//! punctuation; a word counts once, however often it occurs, also in the numbers of words; F1 has
//! 1e-8 in its denominator. A text of nothing but points scores 0, as where the package raises an
//! error and LongBench takes 0.
//!
//! One way is not kept: the package finds the subsequence by recursion, and a pair of sentences of
//! together about a thousand words runs into Python's limit of it, which LongBench also takes
//! for 0. Here the score is what the package gives with a higher limit. It concerns long texts
//! without `.`, as the Chinese ones.

use std::collections::HashSet;

use crate::metrics::{
    sequence::{Lcs, Tie},
    text::split,
};

/// F1 of ROUGE-L against one reference.
pub(in crate::metrics) fn rouge_l(answer: &str, reference: &str) -> f64 {
    let (answer, reference) = (sentences(answer), sentences(reference));
    if answer.is_empty() || reference.is_empty() {
        return 0.0;
    }
    let mut shared = HashSet::new();
    for sentence in &reference {
        for other in &answer {
            let places = Lcs::new(sentence, other).places(Tie::B);
            shared.extend(places.into_iter().map(|place| sentence[place]));
        }
    }
    let distinct = |text: &[Vec<&str>]| text.iter().flatten().collect::<HashSet<_>>().len() as f64;
    let precision = shared.len() as f64 / distinct(&answer);
    let recall = shared.len() as f64 / distinct(&reference);
    2.0 * (precision * recall / (precision + recall + 1e-8))
}

/// Sentences in words. One of nothing but white space is one empty word.
fn sentences(text: &str) -> Vec<Vec<&str>> {
    let words = |sentence| {
        let words: Vec<&str> = split(sentence).collect();
        if words.is_empty() { vec![""] } else { words }
    };
    text.split('.').filter(|sentence| !sentence.is_empty()).map(words).collect()
}
