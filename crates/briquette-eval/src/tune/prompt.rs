/// A prompt that is compressed, and tokens that are fed behind it one at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    /// The tokens of the prompt, then those behind it.
    pub(super) tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub(super) length: usize,
    /// Tokens behind the prompt, counted from 0, after which distributions are compared.
    pub(super) compared: Vec<usize>,
}
