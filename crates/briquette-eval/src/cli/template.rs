use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use briquette_models::ChatTemplate;

use crate::files;

/// Which chat template.
#[derive(Debug, clap::Args)]
pub(super) struct TemplateArgs {
    /// A Jinja file of a chat template [default: that of the model]
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
}

impl TemplateArgs {
    /// The file that is read, if one is named.
    pub(super) fn inputs(&self) -> Vec<PathBuf> {
        self.template.iter().cloned().collect()
    }

    /// The template named, or that of the model in `dir`.
    pub(super) fn of(&self, dir: &Path) -> Result<ChatTemplate> {
        if let Some(path) = &self.template {
            return Ok(ChatTemplate::new(files::read_text(path)?, None, None)?);
        }
        ChatTemplate::load(dir)?.with_context(|| {
            format!(
                "the model in {} has no chat template: name one with --template FILE",
                dir.display()
            )
        })
    }
}
