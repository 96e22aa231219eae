//! Scores of an answer against the right ones, as the scorers of the benchmarks count them.
//!
//! [`Metric`] names a score, [`Metrics`] the scores of an answer; a file here holds the scores of a
//! benchmark, or of a kind. What several of them share is in `text` (words and normalisation) and
//! `sequence` (common subsequences). Every score is checked against the scorer it is named after:
//! `tests/fixtures/metrics` holds the cases, and what made them.
//!
//! The scorers are Python. Where it matters, its idea of white space, of words and of digits is
//! kept. Where an official scorer stops with an error, on a reference that is not in the form it
//! expects, the score here is 0.

mod bleu;
mod coqa;
mod difflib;
mod f1;
mod gsm8k;
mod infinite_bench;
mod list;
mod longbench;
mod longbench_v2;
mod metric;
mod plain;
mod rouge;
mod sequence;
mod text;
mod truthful_qa;
mod zero_scrolls;

pub use list::Metrics;
pub use metric::Metric;

/// The best score over references, 0 without one.
fn best(references: &[String], score: impl FnMut(&str) -> f64) -> f64 {
    references.iter().map(String::as_str).map(score).fold(0.0, f64::max)
}

fn hit(right: bool) -> f64 {
    f64::from(u8::from(right))
}

/// The harmonic mean of precision and recall, 0 where both are.
fn harmonic_mean(precision: f64, recall: f64) -> f64 {
    if precision + recall > 0.0 { 2.0 * precision * recall / (precision + recall) } else { 0.0 }
}
