//! Fidelity as a task.

use std::path::{Path, PathBuf};

use briquette_models::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::{
    Result,
    fidelity::Plan,
    files,
    tasks::text::{Text, Window},
};

/// Fidelity in a run file: how far a model on a compressed cache is from itself on the full one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FidelityTask {
    label: Option<String>,
    /// A file of text; the built-in prose by default.
    text: Option<PathBuf>,
    /// Tokens of the prompt that is compressed.
    #[serde(alias = "length")]
    pub prompt: usize,
    /// Tokens fed behind it.
    pub tokens: usize,
    /// Windows of the text.
    #[serde(default = "one", alias = "samples")]
    windows: usize,
    /// Tokens from the start of one to the start of the next; by default they are spread over the
    /// text.
    stride: Option<usize>,
}

fn one() -> usize {
    1
}

impl FidelityTask {
    pub(super) fn resolve(&mut self, base: &Path) {
        if let Some(text) = &mut self.text {
            *text = files::joined(base, text);
        }
    }

    /// Label in results.
    pub fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| "fidelity".into())
    }

    /// The windows: the prompt and the tokens fed behind it.
    pub(super) fn windows(&self, tokenizer: &Tokenizer, context: usize) -> Result<Vec<Window>> {
        let Self { prompt, tokens, windows, stride, .. } = *self;
        let text = Text::read(self.text.as_deref(), tokenizer)?;
        Plan { prompt, tokens, windows, stride }.windows(&text, context)
    }

    /// Settings that the result depends on beside the tokens of a window.
    pub(super) fn settings(&self) -> String {
        format!("fidelity {}", self.prompt)
    }
}
