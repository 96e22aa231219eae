//! Several policies over several windows.

use briquette_models::Model;
use serde::Serialize;

use super::{Measured, Reference};
use crate::{
    Result,
    grid::Entry,
    jobs,
    tasks::text::{Text, Window, check_windows},
};

/// What is measured on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    /// The windows of a text: a prompt, and the tokens fed behind it.
    ///
    /// # Errors
    /// [`Error::Grid`](crate::Error::Grid) for a number that is 0,
    /// [`Error::ContextTooShort`](crate::Error::ContextTooShort), and what [`Text::windows`] refuses.
    pub fn windows(&self, text: &Text, model: &Model) -> Result<Vec<Window>> {
        let counts = [("prompt", self.prompt), ("tokens", self.tokens), ("windows", self.windows)];
        let length = self.prompt.saturating_add(self.tokens);
        check_windows(&counts, length, model.config().max_position_embeddings)?;
        text.windows(length, self.windows, self.stride)
    }
}

/// Every policy in every window, `[entry][window]`. The full cache runs once a window. `on_measured` hears of each.
///
/// # Errors
/// As [`Reference::new`] and [`Reference::measure`].
pub fn run(
    model: &Model,
    entries: &[Entry],
    windows: &[Window],
    prompt: usize,
    threads: usize,
    mut on_measured: impl FnMut(&Entry),
) -> Result<Vec<Vec<Measured>>> {
    let mut all: Vec<Vec<Measured>> = vec![Vec::with_capacity(windows.len()); entries.len()];
    let indices: Vec<usize> = (0..entries.len()).collect();
    for window in windows {
        let reference = Reference::new(model, &window.tokens, prompt)?;
        let work = |entry: &usize| reference.measure(entries[*entry].policy.clone());
        jobs::run(&indices, threads, work, |entry, measured| {
            all[*entry].push(measured);
            on_measured(&entries[*entry]);
            Ok(())
        })?;
    }
    Ok(all)
}
