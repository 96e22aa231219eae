use crate::{Result, Tokenizer};

/// Tokens that ask a model to repeat a prompt: they stand between the prompt and its repetition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// Tokens before the first part.
    pub first: Vec<u32>,
    /// Tokens before the other parts; the last tokens of the previous part follow.
    pub next: Vec<u32>,
    /// Tokens before every part, at which an answer begins.
    pub answer: Vec<u32>,
}

impl Instruction {
    /// KVzip's words (Kim et al., 2025, [arXiv 2505.23416](https://arxiv.org/abs/2505.23416)), for
    /// a model without a chat template.
    ///
    /// # Errors
    /// [`Error::Tokenizer`](crate::Error::Tokenizer).
    pub fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let encode = |text| tokenizer.encode(text, false);
        Ok(Self {
            first: encode("\n\nRepeat the previous context exactly.")?,
            next: encode("\n\nRepeat the part of the previous context exactly, starting with")?,
            answer: encode("\n")?,
        })
    }
}
