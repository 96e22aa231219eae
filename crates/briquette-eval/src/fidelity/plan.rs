use crate::{
    Result,
    tasks::text::{Text, Window, check_windows},
};

/// Sizes of a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Tokens fed behind it.
    pub tokens: usize,
    /// Windows of the text.
    pub windows: usize,
    /// Tokens from the start of one to the start of the next; `None` spreads them over the text.
    pub stride: Option<usize>,
}

impl Plan {
    /// The windows of a text, a prompt and the tokens fed behind it, for a model with so many
    /// tokens of context.
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting) for a number that is 0,
    /// [`Error::ContextTooShort`](crate::Error::ContextTooShort), and what [`Text::windows`]
    /// refuses.
    pub fn windows(&self, text: &Text, context: usize) -> Result<Vec<Window>> {
        let counts = [("prompt", self.prompt), ("tokens", self.tokens), ("windows", self.windows)];
        let length = self.prompt.saturating_add(self.tokens);
        check_windows(&counts, length, context)?;
        text.windows(length, self.windows, self.stride)
    }
}
