use crate::{Result, Tokenizer};

/// What a model is told when it is to repeat a prompt, as tokens: between the prompt and what repeats it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// Before the first part.
    pub first: Vec<u32>,
    /// Before the others; the last tokens of the part before follow.
    pub next: Vec<u32>,
    /// Before every part: where an answer begins.
    pub answer: Vec<u32>,
}

impl Instruction {
    /// KVzip's words (Kim et al., 2025, [arXiv 2505.23416](https://arxiv.org/abs/2505.23416)), for a model without a chat
    /// template.
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
