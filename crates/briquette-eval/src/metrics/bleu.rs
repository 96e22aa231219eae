//! BLEU (Papineni et al. 2002) of a sentence.

use super::text::{Bag, pattern, split};

/// The longest run of words counted.
const ORDERS: usize = 4;

/// BLEU in 0..=1 against one reference, as `sacrebleu.corpus_bleu` counts it of one sentence with
/// `smooth_method="exp"` and `tokenize="intl"`, the settings of T5 and of TruthfulQA. 0 for an
/// answer of fewer than four words: no other order stands in for those it lacks.
pub(super) fn bleu(answer: &str, reference: &str) -> f64 {
    let (answer, reference) = (tokenize(answer), tokenize(reference));
    let (answer, reference) = (words(&answer), words(&reference));
    let mut smoothing = 1.0;
    let mut logs = 0.0;
    let mut any = false;
    for n in 1..=ORDERS {
        let (said, right): (Bag<&[&str]>, Bag<&[&str]>) =
            (answer.windows(n).collect(), reference.windows(n).collect());
        if said.len == 0 {
            return 0.0;
        }
        let shared = said.shared(&right);
        any |= shared > 0;
        let precision = if shared > 0 {
            shared as f64
        } else {
            // The k-th order without a match has the precision of 1 / 2ᵏ matches (NIST).
            smoothing *= 2.0;
            1.0 / smoothing
        } / said.len as f64;
        logs += precision.ln();
    }
    if !any {
        return 0.0;
    }
    let brevity = (1.0 - reference.len() as f64 / answer.len() as f64).min(0.0);
    (brevity + logs / ORDERS as f64).exp()
}

fn words(text: &str) -> Vec<&str> {
    split(text).collect()
}

/// Sets spaces around symbols, and around punctuation that is not between digits (mteval-v14,
/// international).
fn tokenize(text: &str) -> String {
    let text = text.trim_end_matches(super::text::is_space);
    let text = pattern!(r"(\P{N})(\p{P})").replace_all(text, "$1 $2 ");
    let text = pattern!(r"(\p{P})(\P{N})").replace_all(&text, " $1 $2");
    pattern!(r"(\p{S})").replace_all(&text, " $1 ").into_owned()
}
