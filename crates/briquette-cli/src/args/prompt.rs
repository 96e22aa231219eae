use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use briquette_eval::files::{self, LONGEST};

/// A text given to the model.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
#[command(next_help_heading = "Prompt")]
pub(crate) struct PromptArgs {
    /// Text of the prompt
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// File with the text; `-` is stdin
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
}

impl PromptArgs {
    /// The file that is read, if one is named.
    pub(crate) fn inputs(&self) -> Vec<PathBuf> {
        self.file.iter().filter(|path| *path != Path::new("-")).cloned().collect()
    }

    /// Refuses a text without a letter.
    pub(crate) fn refuse_empty(&self, text: &str) -> Result<()> {
        match &self.file {
            _ if !text.is_empty() => Ok(()),
            None => bail!("--prompt is empty"),
            Some(path) if path == Path::new("-") => bail!("stdin is empty"),
            Some(path) => bail!("{} is empty", path.display()),
        }
    }

    pub(crate) fn read(&self) -> Result<String> {
        match (&self.prompt, &self.file) {
            (Some(text), _) => Ok(text.clone()),
            (None, Some(path)) if path == Path::new("-") => {
                let mut text = String::new();
                let read = io::stdin().take(LONGEST + 1).read_to_string(&mut text);
                if read.context("cannot read stdin")? as u64 > LONGEST {
                    bail!("stdin has more than {LONGEST} bytes");
                }
                Ok(text)
            }
            (None, Some(path)) => Ok(files::read_text(path)?),
            // The group is required, so this is not reached.
            (None, None) => Ok(String::new()),
        }
    }
}
