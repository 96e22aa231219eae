use std::path::PathBuf;

use briquette_eval::tasks::text::Text;
use briquette_models::Tokenizer;

use anyhow::Result;

use crate::args::path::absolute;

/// A text to continue.
#[derive(Debug, clap::Args)]
pub(crate) struct TextArgs {
    /// File of text to continue [default: built-in prose]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
}

impl TextArgs {
    /// The file that is read, if one is named.
    pub(crate) fn inputs(&self) -> Vec<PathBuf> {
        self.text.iter().cloned().collect()
    }

    /// The file from the root on, if one is named.
    pub(crate) fn absolute(&self) -> Result<Option<String>> {
        self.text.as_deref().map(absolute).transpose()
    }

    pub(crate) fn read(&self, tokenizer: &Tokenizer) -> briquette_eval::Result<Text> {
        Text::read(self.text.as_deref(), tokenizer)
    }
}
