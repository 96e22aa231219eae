use std::path::PathBuf;

use briquette_models::Tokenizer;

use crate::{Result, tasks::text::Text};

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

    pub(super) fn read(&self, tokenizer: &Tokenizer) -> Result<Text> {
        Text::read(self.text.as_deref(), tokenizer)
    }
}
