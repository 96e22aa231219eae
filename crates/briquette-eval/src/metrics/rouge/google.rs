//! As Google's Python package `rouge_score` counts, without stemming. Words are runs of a to z and
//! 0 to 9 in lower case; a text in another script has none.

use crate::metrics::{
    best, harmonic_mean,
    sequence::{Lcs, Tie},
    text::Bag,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::metrics) enum Kind {
    /// Of runs of so many words.
    N(usize),
    /// Of the longest common subsequence of words.
    L,
    /// Of the union of the longest common subsequences of lines.
    LSum,
}

/// F1, the best over references.
pub(in crate::metrics) fn rouge(kind: Kind, answer: &str, references: &[String]) -> f64 {
    best(references, |reference| f1(kind, answer, reference))
}

pub(in crate::metrics) fn f1(kind: Kind, answer: &str, reference: &str) -> f64 {
    match kind {
        Kind::N(n) => rouge_n(n, &words(answer), &words(reference)),
        Kind::L => rouge_l(&words(answer), &words(reference)),
        Kind::LSum => rouge_l_sum(&lines(answer), &lines(reference)),
    }
}

fn words(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let words = text.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit()));
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn lines(text: &str) -> Vec<Vec<String>> {
    text.split('\n').map(words).collect()
}

/// The harmonic mean of the shares of both that are shared, 0 where one has nothing.
fn f1_of(shared: usize, answer: usize, reference: usize) -> f64 {
    let share = |of: usize| shared as f64 / of.max(1) as f64;
    harmonic_mean(share(answer), share(reference))
}

fn rouge_n(n: usize, answer: &[String], reference: &[String]) -> f64 {
    let (answer, reference): (Bag<&[String]>, Bag<&[String]>) =
        (answer.windows(n).collect(), reference.windows(n).collect());
    f1_of(answer.shared(&reference), answer.len, reference.len)
}

fn rouge_l(answer: &[String], reference: &[String]) -> f64 {
    f1_of(Lcs::new(reference, answer).len(), answer.len(), reference.len())
}

/// Each line of the reference gives the words that one of its longest common subsequences with any
/// line of the answer holds; a word counts no more often than in both texts (Lin 2004, section 3.2,
/// and ROUGE-1.5.5).
fn rouge_l_sum(answer: &[Vec<String>], reference: &[Vec<String>]) -> f64 {
    let bag = |lines: &[Vec<String>]| lines.iter().flatten().cloned().collect::<Bag<String>>();
    let (mut in_answer, mut in_reference) = (bag(answer), bag(reference));
    let (answer_len, reference_len) = (in_answer.len, in_reference.len);
    let mut shared = 0;
    for line in reference {
        let mut in_union = vec![false; line.len()];
        for other in answer {
            for place in Lcs::new(line, other).places(Tie::A) {
                in_union[place] = true;
            }
        }
        for (word, _) in line.iter().zip(in_union).filter(|(_, in_union)| *in_union) {
            if in_answer.holds(word) && in_reference.take(word) {
                in_answer.take(word);
                shared += 1;
            }
        }
    }
    f1_of(shared, answer_len, reference_len)
}
