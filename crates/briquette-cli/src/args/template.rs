use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use briquette_eval::files;
use briquette_models::{ChatMessage, ChatTemplate};

/// Chat template and system message.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Prompt")]
pub(crate) struct TemplateArgs {
    /// Jinja file of a chat template [default: that of the model]
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// System message before all others
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
}

impl TemplateArgs {
    /// The file that is read, if one is named.
    pub(crate) fn inputs(&self) -> Vec<PathBuf> {
        self.template.iter().cloned().collect()
    }

    /// The system message, if there is one.
    pub(crate) fn system(&self) -> Vec<ChatMessage> {
        self.system.iter().map(|text| ChatMessage::new("system", text)).collect()
    }

    /// A conversation that begins with this message of a user.
    pub(crate) fn conversation(&self, text: String) -> Vec<ChatMessage> {
        let mut messages = self.system();
        messages.push(ChatMessage::new("user", text));
        messages
    }

    /// Refuses what a template wrote if that is nothing.
    pub(crate) fn refuse_empty(text: &str) -> Result<()> {
        match text.is_empty() {
            true => bail!("the chat template wrote no text for this message"),
            false => Ok(()),
        }
    }

    /// The template named, or that of the model in `dir`.
    pub(crate) fn of(&self, dir: &Path) -> Result<ChatTemplate> {
        if let Some(path) = &self.template {
            return Ok(ChatTemplate::for_model(dir, &files::read_text(path)?)?);
        }
        ChatTemplate::load(dir)?.with_context(|| {
            format!(
                "the model in {} has no chat template: name one with --template FILE",
                dir.display()
            )
        })
    }
}
