use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// A text given to the model.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct PromptArgs {
    /// The text itself
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// A file with the text; `-` is stdin
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
}

impl PromptArgs {
    pub(super) fn read(&self) -> Result<String> {
        match (&self.prompt, &self.file) {
            (Some(text), _) => Ok(text.clone()),
            (None, Some(path)) if path == Path::new("-") => {
                let mut text = String::new();
                io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
                Ok(text)
            }
            (None, Some(path)) => {
                fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
            }
            // The group is required, so this is not reached.
            (None, None) => Ok(String::new()),
        }
    }
}
