use std::path::PathBuf;

use briquette_models::Tokenizer;

use anyhow::Result;

use crate::tasks::text::Text;

/// A text to continue.
#[derive(Debug, clap::Args)]
pub(super) struct TextArgs {
    /// The text to continue, any file of text [default: built-in prose]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
}

impl TextArgs {
    /// The file that is read, if one is named.
    pub(super) fn inputs(&self) -> Vec<PathBuf> {
        self.text.iter().cloned().collect()
    }

    /// The file from the root on, if one is named.
    pub(super) fn absolute(&self) -> Result<Option<PathBuf>> {
        Ok(self.text.as_ref().map(std::path::absolute).transpose()?)
    }

    pub(super) fn read(&self, tokenizer: &Tokenizer) -> crate::Result<Text> {
        Text::read(self.text.as_deref(), tokenizer)
    }
}
