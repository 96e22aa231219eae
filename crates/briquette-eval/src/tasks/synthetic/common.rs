//! Turns that synthetic tasks share.

use briquette_models::Tokenizer;

use crate::{
    Result,
    metrics::Metric,
    tasks::{Turn, assemble},
};

/// A turn with one right answer, which continues the question and is known to the token.
pub(super) fn exact_turn(tokenizer: &Tokenizer, question: &str, answer: &str) -> Result<Turn> {
    let tokens = tokenizer.encode(question, false)?;
    let answer_tokens = assemble::continuation(tokenizer, question, &tokens, answer)?;
    Ok(Turn {
        question: tokens,
        references: vec![answer.trim().to_owned()],
        classes: Vec::new(),
        metrics: Metric::ExactMatch.into(),
        max_new_tokens: answer_tokens.len(),
        tokens: Some(answer_tokens),
        stop: Vec::new(),
    })
}

/// A turn whose answer lists `references`. It may take `least` tokens, or half as many again as the
/// right answer `right`.
pub(super) fn list_turn(
    tokenizer: &Tokenizer,
    question: &str,
    references: Vec<String>,
    right: &str,
    least: usize,
) -> Result<Turn> {
    let right = tokenizer.encode(right, false)?.len();
    Ok(Turn {
        question: tokenizer.encode(question, false)?,
        references,
        classes: Vec::new(),
        metrics: Metric::Contains.into(),
        tokens: None,
        max_new_tokens: least.max(right + right.div_ceil(2)),
        stop: Vec::new(),
    })
}
